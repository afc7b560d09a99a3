"""The live page as HTML: the sections of a state, and the page around them.

Names of sites and clients, reasons of refusals and notes come from others, who may be malicious: every text is escaped here. The page's own
script and style carry a nonce; the policy of `server.py` lets nothing else run.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

from coterie._util.formatting import format_bytes, format_count
from coterie.analysis.roles import assign_roles
from coterie.report.style import assign_styles, pick_group_colours

State = Mapping[str, Any]
MOST_NAMES = 12  # members of a group, or sites, that are named
MOST_ROWS = 200  # sites, or lines of a table, that are shown
MOST_LOOKS, MOST_LINES = 20, 6  # looks of a monitor in its table, changed clients in its drawing
DASH = "–"


def render_sections(state: State) -> dict[str, str]:
    """The sections of a state as HTML, by their names, in the order of the page."""
    made: dict[str, str] = {}
    if faults := _collect_faults(state):
        lines = "".join(f"<p>{escape(fault)}</p>" for fault in faults)
        made["faults"] = (
            f'<div class="faults"><p><strong>Part of the files cannot be read now. The rest is below.</strong></p>{lines}</div>'
        )
    if state["kind"] == "federation":
        made["sites"] = _render_sites(state)
        runs = list(reversed(state["runs"]))
        if not runs:
            made["runs"] = "<h2>Runs</h2><p>No runs yet: coterie launch STUDY.toml --federation DIR.</p>"
        for place, run in enumerate(runs):
            made[f"run-{run['run']}"] = _render_run(run, folded=place > 0)
        made["logs"] = _render_logs(state)
    else:
        if not state["studies"]:
            made["runs"] = "<h2>Study</h2><p>Nothing is written yet: the first checkpoint comes after some rounds.</p>"
        for place, study in enumerate(state["studies"]):
            made[f"study-{place}"] = f"<h2>{escape(study.get('data', study['folder']))}</h2>{_render_study(study, f'study-{place}')}"
    return made


def render_page(state: State, sections: Mapping[str, str], version: str, nonce: str) -> str:
    """The whole page. `version` names the state that the sections are of."""
    title = "Federation" if state["kind"] == "federation" else "Study"
    blocks = "".join(f'<section id="{escape(name)}">{inside}</section>' for name, inside in sections.items())
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="en" data-version="{version}">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" content="light dark">',
            f'<title>{title} {escape(state["title"])}</title>\n<style nonce="{nonce}">{_read_asset("style.css")}'
            f'{_read_asset("live/live.css")}</style>\n<noscript><meta http-equiv="refresh" content="5"></noscript>\n</head>\n<body>',
            f'<header><h1>{title} {escape(state["title"])}</h1><p id="state" role="status">{escape(describe_time(state))}</p></header>',
            f'<main>{blocks}</main>\n<script nonce="{nonce}">{_read_asset("live/live.js")}</script>\n</body>\n</html>\n',
        ]
    )


def describe_time(state: State) -> str:
    """Which moment a page is of."""
    return f"As of {_format_time(state['time'])}. Read from files on this machine; the page changes nothing."


@cache
def _read_asset(name: str) -> str:
    return files("coterie.report").joinpath(name).read_text(encoding="utf-8")


def _collect_faults(state: State) -> list[str]:
    found = list(state.get("faults", ()))
    for run in state.get("runs", ()):
        found += run["faults"]
        found += (run["study"] or {}).get("faults", ())
    for study in state.get("studies", ()):
        found += study["faults"]
    return list(dict.fromkeys(found))


def _format_time(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    when = datetime.fromtimestamp(seconds).astimezone()
    same_day = when.date() == datetime.now().astimezone().date()
    return f"{when:%H:%M:%S}" if same_day else f"{when:%Y-%m-%d %H:%M}"


def _render_table(titles: Sequence[str], rows: Iterable[Sequence[str]], *, cards: bool = False) -> str:
    """A table of escaped cells; of `cards`, on a phone each row becomes a card whose lines have the titles in front."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f'<td data-title="{escape(title)}">{cell}</td>' for title, cell in zip(titles, row, strict=True)) + "</tr>"
        for row in rows
    )
    kind = "cards words" if cards else "words"
    return f'<div class="table"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _render_sites(state: State) -> str:
    """Which sites are there, since when, their versions and certificates, and what their policies allow."""
    here = sum(site["there"] for site in state["sites"])
    server = f"The server {state['server']} {'listens' if state['listening'] else 'does not run'}"
    lead = f"<p>{escape(server)}; {here} of {format_count(len(state['sites']), 'site')} connected.</p>"
    ending = state["certificates_ending"]
    rows = []
    for site in sorted(state["sites"], key=lambda one: one["there"])[:MOST_ROWS]:  # those that are gone first
        ends = escape(site["certificate_ends"] or DASH)
        rows.append(
            (
                f"<strong>{escape(site['site'])}</strong>",
                _describe_presence(site),
                escape(site["version"] or DASH),
                f'<span class="bad">{ends}</span>' if site["site"] in ending else ends,
                _describe_policy(site["policy"]),
                _describe_privacy(site),
            )
        )
    rows += [(f"<strong>{escape(name)}</strong>", "removed by the operator", DASH, DASH, DASH, DASH) for name in state["removed"]]
    table = _render_table(("site", "state", "version", "certificate until", "policy allows", "privacy spent"), rows, cards=True)
    more = len(state["sites"]) - MOST_ROWS
    note = f'<p class="note">{more:,} more sites are connected and not listed.</p>' if more > 0 else ""
    others = [f"{name} until {ends}" for name, ends in ending.items() if name not in {site["site"] for site in state["sites"]}]
    warn = f'<p class="bad">Certificates that end: {escape(", ".join(others))}.</p>' if others else ""
    return f"<h2>Sites</h2>{lead}{table}{note}{warn}"


def _describe_presence(site: State) -> str:
    if site["there"]:
        seen = site["seen_seconds_ago"]
        late = f", silent for {seen:.0f} s" if seen is not None and seen > 10 else ""
        return f'<span class="good">connected</span> since {_format_time(site["since"])}{late}'
    when = site["since"] or site["last_seen"]
    return f'<span class="bad">not connected</span>{f" since {_format_time(when)}" if when else ", never seen"}'


def _describe_policy(policy: State | None) -> str:
    if policy is None:
        return '<span class="quiet">known at the site only</span>'
    limit = policy["epsilon_limit"]
    private = policy["privacy"] if limit is None else f"{policy['privacy']}, epsilon at most {limit:g}"
    rules = f"privacy: {private}; at least {policy['minimum_samples']} samples; {policy['maximum_rounds']:,} rounds"
    return f"{escape(', '.join(policy['asks']) or 'nothing')}<small>{escape(rules)}</small>"


def _describe_privacy(site: State) -> str:
    spent = site["privacy"]
    if spent is None:
        return '<span class="quiet">known at the site only</span>'
    lines = []
    if spent["epsilon"]:
        worst = max(spent["epsilon"].items(), key=lambda item: item[1])
        limit = (site["policy"] or {}).get("epsilon_limit")
        of = "" if limit is None else f" of {limit:g}"
        lines.append(f"epsilon {worst[1]:.3g}{of} ({worst[0]}, the most of {format_count(len(spent['epsilon']), 'client')})")
    if spent["exact"]:
        lines.append(f"{format_count(spent['exact'], 'answer')} without noise: no epsilon covers them")
    return "<br>".join(map(escape, lines)) or "nothing yet"


def _render_logs(state: State) -> str:
    """The heads of the sites' audit logs, as far as they are on this machine."""
    known = [site for site in state["sites"] if site["audit"] is not None]
    rows = [
        (
            escape(site["site"]),
            f"{site['audit']['lines']:,}{' (and half a line)' if site['audit']['torn'] else ''}",
            f"<code>{escape(site['audit']['hash'])}</code>",
        )
        for site in known[:MOST_ROWS]
    ]
    if not rows:
        return "<h2>Audit logs</h2><p>No site's log is on this machine. At a site: coterie policy audit KIT.</p>"
    note = "Not checked here: 'coterie policy audit KIT' checks the whole chain."
    return f'<h2>Audit logs</h2>{_render_table(("site", "lines", "hash of the last line"), rows)}<p class="note">{escape(note)}</p>'


def _render_run(run: State, *, folded: bool) -> str:
    """A run: its status, its study, its events. Of several, the older ones are folded."""
    what = "" if run["kind"] == "study" else f" ({run['kind']})"
    title = f"Run {run['run']}{what}: {run['status']}"
    blocks = [f'<p class="bad">{escape(str(run["reason"]))}</p>' if run.get("reason") else ""]
    blocks.append(f"<p>Sites: {escape(_name_some(run['sites']))}.</p>" if run["sites"] else "")
    if run["study"] is not None:
        blocks.append(_render_study(run["study"], f"run-{run['run']}"))
    elif run.get("history") is not None:
        blocks.append(_render_history(run["history"], run["rounds"]))
    elif run["rounds"]:
        blocks.append(f"<p>No round of {run['rounds']:,} yet.</p>")
    rows = [(_format_time(event["time"]), escape(event["text"])) for event in reversed(run["events"])]
    if rows:
        late = f", {format_count(run['late'], 'late answer')}" if run["late"] else ""
        summary = f"<summary>Events ({len(rows)}{late})</summary>"
        blocks.append(f'<details id="events-{escape(run["run"])}">{summary}{_render_table(("time", "event"), rows)}</details>')
    inside = "".join(blocks)
    if folded:
        return f'<details id="fold-{escape(run["run"])}" class="fold"><summary><h2>{escape(title)}</h2></summary>{inside}</details>'
    return f"<h2>{escape(title)}</h2>{inside}"


def _render_study(study: State, name: str) -> str:
    """Progress, curve, groups, refused replies and bytes of a study."""
    if study["status"] == "unreadable":
        return "<p>Its files cannot be read now.</p>"
    done, total = study["done"], study["total"]
    seconds = study["seconds_left"]
    left = "" if seconds is None else f", about {_format_duration(seconds)} left"
    runs = format_count(len(study["methods"]) * len(study["seeds"]) * len(study["draws"]), "run")
    reached = "no round on disk yet" if study["round"] is None else f"round {study['round']:,} of {study['rounds']:,}"
    words = f"{study['status']}: {reached}{left}; {format_count(study['clients'], 'client')}, {runs}, {study['model']}"
    blocks = [f'<p><progress max="{max(total, 1)}" value="{done}"></progress> {escape(words)}.</p>']
    blocks += [f'<p class="bad">{escape(line)}</p>' for line in study["stopped_runs"][:MOST_NAMES]]
    blocks.append(_render_curves(study))
    blocks += [_render_groups(study, label, name) for label in study["groups"]]
    blocks.append(_render_refused(study, name))
    rows = [
        (escape(study["names"].get(label, label)), format_bytes(own["down"]), format_bytes(own["up"]))
        for label, own in study["bytes"].items()
    ]
    if rows:
        table = _render_table(("method", "to clients", "from clients"), rows)
        blocks.append(f'<details id="bytes-{escape(name)}" open><summary>Bytes so far</summary>{table}</details>')
    return "".join(blocks)


def _format_duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"


def _render_curves(study: State) -> str:
    """The score of each method after each evaluated round, as one drawing with its legend."""
    curves = {label: own for label, own in study["curves"].items() if own["scores"]}
    if not curves:
        return ""
    share = study["metric"]["share"]
    styles = assign_styles(assign_roles(study["methods"]))
    lines = []
    for label, own in curves.items():
        stroke = f'stroke="{styles[label].colour}" stroke-dasharray="{" ".join(map(str, styles[label].dash))}"'
        few = own["clients"][-1]
        of = f", {few} of {study['clients']} clients" if few < study["clients"] else ""
        lines.append((study["names"].get(label, label), stroke, list(zip(own["rounds"], own["scores"], strict=True)), of))
    title = f"{study['metric']['name']} of the clients that answered, mean over draws and seeds"
    return _draw_lines(lines, title[0].upper() + title[1:], "round", first=0, share=share)


Line = tuple[str, str, Sequence[tuple[float, float]], str]  # its name, how it is drawn, its points, and what else the legend has


def _draw_lines(lines: Sequence[Line], title: str, step: str, *, first: int, share: bool) -> str:
    """Scores by rounds or looks, as one drawing with its legend."""
    scores = [score for _, _, points, _ in lines for _, score in points]
    low, high = min(scores), max(scores)
    room = max((high - low) * 0.08, 0.005)
    low, high = low - room, high + room
    last = max(x for _, _, points, _ in lines for x, _ in points)
    width = max(last - first, 1)

    def show(score: float) -> str:
        return f"{100 * score:.1f} %" if share else f"{score:.3f}"

    drawn, legend = [], []
    for name, stroke, points, more in lines:
        places = " ".join(f"{1000 * (x - first) / width:.1f},{300 * (high - score) / (high - low):.1f}" for x, score in points)
        drawn.append(f'<polyline points="{places}" fill="none" {stroke} stroke-width="2.2" vector-effect="non-scaling-stroke"/>')
        sample = f'<svg viewBox="0 0 26 10"><path d="M0 5H26" {stroke} stroke-width="3"/></svg>'
        legend.append(f"<span>{sample}{escape(name)} {escape(show(points[-1][1]) + more)}</span>")
    grid = "".join(f'<path d="M0 {y}H1000" class="grid" vector-effect="non-scaling-stroke"/>' for y in (0, 75, 150, 225, 300))
    scale = "".join(f"<span>{show(tick)}</span>" for tick in (high, (high + low) / 2, low))
    return (
        f'<figure class="live"><figcaption>{escape(title)}</figcaption><div class="plot"><div class="scale">{scale}'
        f'</div><svg viewBox="0 0 1000 300" preserveAspectRatio="none" role="img" aria-label="{escape(title)}">{grid}{"".join(drawn)}</svg>'
        f'<div class="rounds"><span>{step} {first}</span><span>{last:,}</span></div></div>'
        f'<div class="legend">{"".join(legend)}</div></figure>'
    )


def _render_history(history: State, rounds: int | None) -> str:
    """The looks of a monitor: what has changed and since when, the scores, and how to train on."""
    looks, changes = history["looks"], history["changes"]
    of = f" of {rounds:,}" if rounds else ""
    blocks = [f"<p>Look {len(looks):,}{of}, the last one {_format_time(looks[-1]['time'])}.</p>"]
    if changes:
        rows = [
            (
                f"<strong>{escape(change['client'])}</strong>",
                escape(change["site"]),
                f"look {change['look']:,}, {_format_time(change['time'])}",
                f"{100 * change['before']:.0f} % to {100 * change['now']:.0f} %",
            )
            for change in reversed(changes[-MOST_NAMES:])
        ]
        blocks.append(f'<p class="bad">{escape(format_count(len(changes), "change"))} noticed: the error has risen.</p>')
        blocks.append(_render_table(("client", "site", "noticed in", "error"), rows, cards=True))
        blocks.append(f"<p>To train on from the bundle: <code>{escape(history['proposal'])}</code></p>")
    else:
        blocks.append(f"<p>No change was noticed in {format_count(len(looks), 'look')}.</p>")
    known = [(look["look"], look["accuracy"]) for look in looks if look["accuracy"] is not None]
    colours = pick_group_colours(max(len(history["changed"]), 1))
    lines: list[Line] = [("all clients", 'stroke="currentColor"', known, "")] if known else []
    for (client, points), colour in list(zip(history["changed"].items(), colours, strict=False))[:MOST_LINES]:
        lines.append((client, f'stroke="{colour}"', [(look, score) for look, score in points], ""))
    if len(looks) > 1 and lines:
        blocks.append(_draw_lines(lines, "Accuracy of the bundle, by look", "look", first=1, share=True))
    listed = [
        (f"{look['look']:,}", _format_time(look["time"]), f"{look['clients']:,}", f"{look['samples']:,}", _format_share(look["accuracy"]))
        for look in reversed(looks[-MOST_LOOKS:])
    ]
    summary = f"<summary>Looks (the last {len(listed)})</summary>"
    table = _render_table(("look", "time", "clients", "samples", "accuracy"), listed)
    return "".join(blocks) + f'<details id="looks">{summary}{table}</details>'


def _format_share(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:.1f} %"


def _render_groups(study: State, label: str, name: str) -> str:
    """Which clients a method puts together, with its first draw and seed."""
    members: dict[int, list[str]] = {}
    for client, group in study["groups"][label].items():
        members.setdefault(group, []).append(client)
    colours = pick_group_colours(max(max(members), 0) + 1)
    rows = []
    for group, own in sorted(members.items()):
        swatch = f'<svg viewBox="0 0 10 10"><circle cx="5" cy="5" r="5" fill="{colours[group]}"/></svg>' if group >= 0 else ""
        title = f"{swatch} group {group}" if group >= 0 else "none yet"
        rows.append((title, f"{len(own):,}", escape(_name_some(own))))
    key = escape(f"groups-{name}-{study['methods'].index(label)}")
    summary = f"Groups of {study['names'].get(label, label)}"
    return f'<details id="{key}" open><summary>{escape(summary)}</summary>{_render_table(("group", "clients", "members"), rows)}</details>'


def _render_refused(study: State, name: str) -> str:
    rows = [
        (escape(row["client"]), escape(row["ask"]), escape(row["reason"]), f"{row['times']:,}", f"{row['last_round']:,}")
        for row in study["refused"]
    ]
    absent = f" {format_count(study['absent'], 'ask')} had no reply." if study["absent"] else ""
    if not rows:
        return f"<p>No reply was refused.{absent}</p>" if study["curves"] else ""
    more = study["refused_kinds"] - len(rows)
    note = f"<p>{more:,} more kinds are not listed.</p>" if more > 0 else ""
    table = _render_table(("client", "ask", "why", "times", "last round"), rows, cards=True)
    return f'<details id="refused-{escape(name)}" open><summary>Refused replies</summary>{table}{note}</details><p>{absent.strip()}</p>'


def _name_some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return f"{', '.join(names[:MOST_NAMES])}{f' and {more:,} more' if more > 0 else ''}"
