"""Methods over several federations: mean ranks and the difference that it takes to tell two apart."""

import altair as alt

from coterie.report.figure import Figure
from coterie.report.style import GREY, OKABE_ITO
from coterie.statistics import Ranking


def ranks(ranking: Ranking) -> Figure:
    """Mean ranks, and bars over the methods that cannot be told apart."""
    order = sorted(range(len(ranking.methods)), key=lambda i: ranking.ranks[i])
    names = [ranking.methods[i] for i in order]
    best = ranking.ranks[order[0]]
    rows = [{"method": ranking.methods[i], "rank": round(ranking.ranks[i], 3), "end": round(best + ranking.difference, 3)} for i in order]
    y = alt.Y("method:N", sort=names, title=None)
    scale = alt.Scale(domain=[1, max(float(len(names)), best + ranking.difference)], nice=False)
    points = (
        alt.Chart()
        .mark_point(filled=True, size=100, color=OKABE_ITO["blue"], opacity=1)
        .encode(x=alt.X("rank:Q", title="mean rank (1 is best)", scale=scale), y=y, tooltip=["method:N", "rank:Q"])
    )
    limit = alt.Chart(alt.InlineData(values=rows[:1])).mark_rule(color=GREY, strokeDash=[5, 4]).encode(x="end:Q")
    chart = alt.layer(points, limit, data=alt.InlineData(values=rows)).properties(height=alt.Step(26))
    note = (
        f"Over {ranking.federations} federations. Friedman's test: p = {ranking.p:.3g}. Methods left of the dashed line cannot be told "
        f"apart from the best (critical difference {ranking.difference:.2f})."
    )
    return Figure("ranks", "Methods ranked over the federations", note, chart)
