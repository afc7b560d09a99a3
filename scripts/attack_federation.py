"""Attacks on a real federation: part of `make drill`. Prints one Markdown table, and ends with 1 where an attack was not held off.

    python scripts/attack_federation.py [--only WORD ...] [--quick] [--soak MINUTES --seed S]

The attacks themselves are tests (`tests/deploy` and a few beside it), so that there is one copy of each. Those about processes start a
server, sites and a malicious site on this machine, with mutual TLS; those about messages run the code of a server or a site in this
process. A row counts as held when all of its tests ran and passed. `--quick` omits the real processes. Needs the extra `deploy`
and Linux.
"""

import argparse
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
OUTSIDER, LOCAL, SITE, SITES, OPERATOR, SERVER, MAKER = (
    "outsider",
    "local user",
    "site",
    "sites together",
    "operator",
    "server",
    "bundle's maker",
)
PROCESSES = {"test_attacks", "test_intruders", "test_kills", "test_approval_federation", "site_share_drill"}  # files of real processes
REFUSED = "refused"


@dataclass(frozen=True)
class Attack:
    """An attack, who makes it, what happens where it is held off, and the tests that make it."""

    name: str
    who: str
    outcome: str
    tests: tuple[str, ...]  # FILE::NAME below tests/; all cases of a test count

    @property
    def quick(self) -> bool:
        return not any(Path(test.partition("::")[0]).stem in PROCESSES for test in self.tests)


def in_deploy(*tests: str) -> tuple[str, ...]:
    """Tests of `tests/deploy`, as FILE::NAME without what all share: "protection::a_site" is test_protection.py::test_a_site."""
    return tuple(f"deploy/test_{file}.py::test_{name}" for file, _, name in (test.partition("::") for test in tests))


ATTACKS = (
    # outsiders
    Attack("connect without a certificate", OUTSIDER, "not answered", in_deploy("attacks::without_a_certificate_no_answer_comes")),
    Attack(
        "join with a certificate of another authority",
        OUTSIDER,
        "never registered",
        in_deploy("attacks::certificates_of_another_authority_are_never_registered"),
    ),
    Attack(
        "connect with a self-signed, expired, future or wrongly chained certificate",
        OUTSIDER,
        "connection refused in the handshake",
        in_deploy("attacks::no_wrong_certificate_is_let_in"),
    ),
    Attack(
        "use a certificate outside its validity",
        OUTSIDER,
        "a sentence that says so; nothing starts",
        in_deploy(
            "certificates::a_server_whose_certificate_has_ended_does_not_start",
            "certificates::a_certificate_that_is_not_valid_yet_is_a_matter_of_clocks",
        ),
    ),
    # local users
    Attack(
        "connect to a job's listener",
        LOCAL,
        "permission denied: a socket in a folder of mode 700",
        in_deploy("intruders::another_user_of_the_machine_cannot_reach_a_job", "jobs::a_socket_is_private_however_long_its_path_is"),
    ),
    Attack(
        "find another listening port",
        LOCAL,
        "one TCP port at the server, none elsewhere",
        in_deploy("intruders::one_port_at_the_server_and_none_elsewhere"),
    ),
    Attack(
        "read kits, keys, logs and bundles",
        LOCAL,
        "files 600, folders 700, restored at each start",
        in_deploy(
            "private_files::a_federation_s_files_are_its_operator_s_alone",
            "private_files::a_kit_that_was_opened_on_its_way_is_closed",
            "private_files::a_kit_that_cannot_be_closed_is_refused",
            "private_files::a_bundle_is_its_owner_s_alone",
            "delivery::a_bundle_is_its_owner_s",
            "ledger_seal::the_ledger_is_its_owners_alone",
        ),
    ),
    Attack(
        "place a link where sockets are made",
        LOCAL,
        REFUSED,
        in_deploy("jobs::a_folder_of_sockets_that_is_a_link_is_refused"),
    ),
    Attack(
        "kill -9 of `serve` and `join` in a run",
        SITE,
        "all processes end; the run completes after a restart",
        in_deploy(
            "kills::kills_leave_nothing_behind_and_the_run_completes",
            "processes::a_child_ends_with_its_parent",
            "processes::what_a_killed_holder_has_left_is_ended",
        ),
    ),
    Attack(
        "kill -9 in an order about tables, or in a monitor's look",
        SITE,
        "run again it completes; logs, ledgers and history are whole",
        in_deploy(
            "table_kills::a_killed_order_about_tables_is_run_again",
            "table_kills::a_killed_look_is_taken_again_and_the_history_only_grows",
        ),
    ),
    # one site
    Attack(
        "read another site's kit (shell)",
        SITE,
        "refused by the server and logged",
        in_deploy("intruders::a_site_cannot_look_into_another_s_kit"),
    ),
    Attack(
        "delete another site's files, also under the server's name",
        SITE,
        "refused by the server and logged",
        in_deploy("intruders::a_site_cannot_delete_what_another_has"),
    ),
    Attack(
        "run a program at another site (deploy and start a job)",
        SITE,
        "refused; nothing is run",
        in_deploy("intruders::a_site_cannot_run_a_program_at_another"),
    ),
    Attack("stop or examine processes of others", SITE, REFUSED, in_deploy("intruders::a_site_cannot_stop_or_examine_processes_of_others")),
    Attack(
        "any message to another site, under any name",
        SITE,
        "not passed on, not accepted",
        in_deploy(
            "protection::the_server_passes_nothing_on_between_sites",
            "protection::no_site_speaks_under_another_name",
            "protection::what_is_not_listed_is_refused",
            "protection::a_stream_is_judged_by_what_is_in_it",
            "protection::connections_beside_the_server_and_odd_headers_are_refused",
            "protection::replies_count_where_one_waits",
        ),
    ),
    Attack("learn the tokens of other sites", SITE, "only its own seen", in_deploy("intruders::a_site_gets_no_other_site_s_token")),
    Attack(
        "end the run of all sites (abort, bulk, failure report, undecodable result, stream error)",
        SITE,
        "the run continues in the same job",
        in_deploy("intruders::a_site_cannot_end_the_run", "protection::a_stream_is_judged_by_what_is_in_it"),
    ),
    Attack(
        "make the server's job connect to an address", SITE, "no connection", in_deploy("intruders::the_server_s_job_connects_to_nobody")
    ),
    Attack(
        "continue after removal",
        SITE,
        "connection closed at once; not heard again",
        in_deploy("intruders::a_removed_site_is_cut_off_at_once", "protection::a_removed_site_hears_that_it_is_and_nothing_else"),
    ),
    Attack(
        "join under another site's name",
        SITE,
        "refused: certificate and name differ",
        in_deploy("attacks::a_site_that_claims_another_s_name_is_refused"),
    ),
    Attack("act as the operator", SITE, "no session", in_deploy("attacks::a_site_cannot_act_as_the_operator")),
    Attack(
        "false site cards",
        SITE,
        "that site is not part of the job, with the reason; the run continues",
        in_deploy(
            "validation::a_false_card_costs_only_its_site_the_job",
            "validation::a_false_card_does_not_end_the_run",
            "attacks::a_false_card_costs_only_its_site_the_job",
        ),
    ),
    Attack(
        "false replies and messages",
        SITE,
        "that site is absent for the round, with the reason",
        in_deploy(
            "validation::a_false_reply_costs_only_its_site_the_round",
            "validation::a_false_message_costs_only_its_site_the_round",
            "validation::losses_and_errors_are_checked_too",
            "attacks::wrong_messages_cost_only_their_site_the_round",
        ),
    ),
    Attack(
        "false answers about a table (columns, findings, statistics)",
        SITE,
        "that site is left out of the order, with the reason",
        in_deploy(
            "table_attacks::a_false_answer_about_a_table_costs_only_its_site_the_order",
            "tables::a_site_that_lies_is_refused_and_the_others_answer",
            "tables::a_description_that_cannot_be_is_refused",
        ),
    ),
    Attack(
        "false sums by which all sites are prepared",
        SITE,
        "refused: the site's card and the columns' bounds bound them",
        in_deploy("table_attacks::false_sums_prepare_no_site"),
    ),
    Attack(
        "false counts and scores of survival times",
        SITE,
        "that site is left out, with the reason",
        in_deploy(
            "table_attacks::false_counts_of_survival_times_make_no_curve",
            "table_attacks::false_sums_of_survival_times_cost_only_their_site_the_round",
        ),
    ),
    Attack(
        "claim more clients or samples, or clients of others",
        SITE,
        "refused: first card of the run and the roster bound it",
        in_deploy(
            "validation::a_liar_that_comes_first_does_not_take_the_others_out",
            "validation::a_client_belongs_to_the_site_that_the_roster_lists_it_for",
            "validation::a_client_stays_with_the_site_that_had_it",
            "validation::a_site_has_no_more_than_it_first_said_unless_the_roster_lets_it",
            "validation::the_roster_bounds_what_a_site_may_claim",
        ),
    ),
    Attack(
        "replies and streams of any size",
        SITE,
        "dropped while they arrive",
        in_deploy(
            "transport::a_result_that_says_it_is_larger_is_dropped_at_its_first_frame",
            "transport::a_result_that_does_not_say_how_large_it_is_is_dropped_when_it_is_too_large",
            "transport::many_streams_that_never_end_are_dropped",
            "transport::headers_of_another_type_are_dropped",
            "transport::what_is_no_result_is_small",
            "transport::a_frame_that_is_too_large_is_not_read",
        ),
    ),
    Attack(
        "frames faster than a job reads, or answers that are never read",
        SITE,
        "the sender waits, or is disconnected; other sites are not delayed",
        in_deploy(
            "transport::a_site_that_floods_its_job_waits_and_costs_no_other",
            "transport::a_site_that_does_not_read_is_disconnected",
        ),
    ),
    Attack(
        "fill the server's memory with names, connections and registrations",
        SITE,
        "names are not kept; closed connections and replaced tokens are forgotten",
        in_deploy(
            "intruders::a_site_cannot_fill_the_server_s_memory_with_names",
            "transport::no_statistics_are_kept_by_names_that_a_sender_chooses",
            "transport::cells_whose_connections_are_closed_are_forgotten",
            "transport::a_site_that_registers_again_leaves_nothing_behind",
        ),
    ),
    Attack(
        "control sequences to the operator's terminal",
        SITE,
        "escaped",
        in_deploy(
            "delivery::what_a_site_says_does_not_reach_the_operator_s_terminal_as_it_is",
            "validation::a_receipt_that_cannot_be_right_is_none",
        ),
    ),
    Attack(
        "formulas and markup in names",
        SITE,
        "escaped in CSV and Markdown",
        ("_util/test_formatting.py::test_no_cell_begins_a_formula", "cli/test_names.py::test_names_are_no_formulas_in_any_table"),
    ),
    # sites together
    Attack(
        "most clients at one malicious site",
        SITES,
        "weight and votes bounded to a third; `+guard` keeps the accuracy",
        (
            "run/test_site_shares.py::test_a_bound_takes_the_federation_back_from_a_site_with_most_clients",
            "run/test_site_shares.py::test_no_method_gives_a_site_more_than_its_share",
            "core/test_mixing_site_shares.py::test_a_site_of_many_clients_does_not_decide_who_is_too_far",
        ),
    ),
    Attack(
        "30 clients at one malicious site of four, the others with one each",
        SITES,
        "weight bounded to a third: the honest sites keep their accuracy",
        ("deploy/site_share_drill.py::test_a_bound_takes_a_real_federation_back_from_a_site_of_30_clients",),
    ),
    # operators
    Attack(
        "submit a job with code or configuration of one's own",
        OPERATOR,
        "refused at server and site; nothing is run",
        in_deploy(
            "intruders::an_operator_s_own_job_runs_nowhere",
            "jobs::a_site_s_job_with_anything_else_in_it_is_refused",
            "jobs::a_job_with_more_files_is_refused",
            "jobs::a_job_names_one_class",
            "jobs::a_job_that_the_operator_has_not_signed_is_refused",
        ),
    ),
    Attack(
        "read and delete through FLARE's console",
        OPERATOR,
        "no such command; the attempt is logged",
        in_deploy("intruders::an_operator_reads_nothing_and_deletes_nothing", "jobs::an_operator_s_rights"),
    ),
    Attack(
        "hand out a kit that brings code or other rights",
        OPERATOR,
        "refused by `join`, or replaced",
        in_deploy(
            "intruders::a_kit_that_brings_more_is_refused",
            "jobs::a_kit_with_more_in_it_is_refused",
            "jobs::what_a_kit_says_of_flare_is_not_believed",
        ),
    ),
    Attack(
        "run an order that a site has not approved",
        OPERATOR,
        "the site answers nothing until it approves",
        in_deploy(
            "orders::nothing_is_answered_before_the_site_says_yes",
            "orders::an_approved_order_needs_no_second_yes_and_another_one_of_its_name_does",
            "approval_federation::a_run_waits_for_its_sites_and_takes_the_last_one_in_later",
            "approval_federation::another_order_of_the_same_name_waits_again_and_may_be_refused",
        ),
    ),
    # servers
    Attack(
        "orders of another kind, to a site itself (shell, delete, shut down)",
        SERVER,
        REFUSED,
        in_deploy("protection::a_site_does_what_a_run_needs_and_nothing_else"),
    ),
    Attack(
        "asks outside the approved order (kind, round, seed, run)",
        SERVER,
        "denied and logged",
        in_deploy("orders::an_ask_outside_of_the_order_is_denied_and_logged", "orders::a_hello_must_be_what_it_says"),
    ),
    Attack(
        "asks of any size",
        SERVER,
        "dropped while they arrive, and logged",
        in_deploy("transport::asks_are_bounded_at_a_site_while_they_come_in"),
    ),
    Attack(
        "spend more privacy than the order was approved for",
        SERVER,
        "denied",
        in_deploy("orders::what_was_approved_by_epsilon_is_held_to_it"),
    ),
    Attack(
        "questions about a table outside of the order or the policy",
        SERVER,
        "denied and logged",
        in_deploy(
            "table_attacks::a_study_asks_no_question_about_a_table_that_its_order_does_not_name",
            "table_attacks::a_policy_keeps_counts_of_survival_times",
            "tables::a_site_answers_no_table_question_outside_of_its_order",
        ),
    ),
    Attack(
        "survival times counted on grids that differ a little",
        SERVER,
        "one grid a run; another than the agreed one is refused",
        in_deploy(
            "table_attacks::survival_times_are_counted_on_one_grid_a_run",
            "table_attacks::a_schema_with_another_grid_than_the_agreed_one_is_refused",
        ),
    ),
    Attack(
        "statistics again and again under noise",
        SERVER,
        "each answer is charged; over the budget none leaves",
        in_deploy(
            "table_attacks::clipped_and_noised_statistics_are_charged_until_the_budget_ends",
            "tables::under_a_mechanism_statistics_are_noised_and_charged",
        ),
    ),
    Attack(
        "counts that a policy withholds, from one `Losses` ask",
        SERVER,
        "rounded at random: one answer does not give the count",
        in_deploy(
            "disclosure::made_up_models_do_not_tell_counts_that_are_kept",
            "disclosure::bisecting_does_not_find_where_an_answer_jumps",
            "disclosure::no_weight_is_large_enough_for_one_sample_to_stand_out",
        ),
    ),
    Attack(
        "values of a feature by `Losses` at epsilon 0.5",
        SERVER,
        "noise; the second answer is over the budget",
        in_deploy(
            "disclosure::ages_do_not_leave_through_losses_at_epsilon_one_half",
            "disclosure::under_clip_and_noise_every_number_of_every_reply_is_noised_or_withheld",
        ),
    ),
    Attack(
        "false fields of asks (negative epochs, wrong lengths, NaN, ...)",
        SERVER,
        "refused before anything runs; nothing charged or refunded",
        in_deploy(
            "permission::a_field_that_cannot_be_right_is_named_and_costs_nothing",
            "permission::stamps_are_checked_too",
            "permission::what_is_charged_is_what_is_executed",
        ),
    ),
    Attack(
        "a gradient from sketches of many runs",
        SERVER,
        "half of its directions at most, over all runs",
        in_deploy("site_sketches::twelve_runs_show_no_more_than_one", "site_sketches::the_key_of_a_projection_is_a_number_of_64_bits"),
    ),
    Attack(
        "ask for files by a model's spec",
        SERVER,
        "refused, in the same words for any name",
        in_deploy("policy::a_spec_from_a_server_names_nothing_of_the_site", "policy::a_server_cannot_ask_whether_a_file_exists"),
    ),
    Attack(
        "write outside the kit by a delivery",
        SERVER,
        "refused: names are names",
        in_deploy(
            "delivery::what_is_no_name_is_no_run_no_site_no_order_and_no_folder",
            "delivery::a_method_that_the_order_does_not_name_is_not_delivered",
            "delivery::nothing_is_delivered_outside_of_an_approved_order",
        ),
    ),
    Attack(
        "fill or damage a site's log (50 MB, full disk, many orders)",
        SERVER,
        "bounded; no torn line",
        in_deploy(
            "audit::a_purpose_of_50_megabytes_reaches_no_log",
            "audit::a_long_field_does_not_fill_the_log",
            "audit::a_full_disk_leaves_no_torn_line",
            "orders::a_server_cannot_fill_the_kit_with_orders",
            "protection::refusals_cannot_fill_a_disk",
        ),
    ),
    Attack(
        "messages that leave no trace",
        SERVER,
        "all logged; without a log nothing is answered",
        in_deploy("audit::hellos_cards_and_what_is_refused_are_in_the_log", "audit::without_a_log_nothing_is_answered"),
    ),
    Attack(
        "ledger or log deleted, changed, cut or rolled back",
        SITE,
        "found; without its ledger the site answers nothing",
        in_deploy(
            "ledger_seal::a_ledger_that_is_missing_or_changed_answers_nothing",
            "ledger_seal::an_older_copy_is_no_refund",
            "ledger_seal::a_ledger_without_its_log_is_refused",
            "audit::a_changed_line_is_named",
            "audit::a_kit_remembers_the_last_line_that_was_checked",
            "audit::the_log_of_flare_is_in_the_chain",
        ),
    ),
    # makers of bundles and study files
    Attack(
        "crafted bundles that take minutes or memory",
        MAKER,
        "refused before the work is done",
        in_deploy(
            "crafted_bundles::shapes_are_not_multiplied_before_they_are_checked",
            "crafted_bundles::a_model_of_very_many_layers_is_not_made",
            "crafted_bundles::a_combiner_is_not_asked_for_every_client",
            "crafted_bundles::clients_and_scalings_are_checked_first",
            "crafted_bundles::a_long_list_of_arrays_is_not_read",
            "crafted_bundles::a_head_of_any_length_is_not_read",
        ),
    ),
    Attack(
        "damaged or foreign bundles, or ones that name code",
        MAKER,
        "one sentence; code runs only if named again",
        in_deploy("bundle::what_is_damaged_or_foreign_is_one_sentence", "bundle::a_model_of_the_users_own_is_built_only_if_said_again"),
    ),
    Attack(
        "code or a Ray cluster named in a study file",
        MAKER,
        "refused without `--trust-code`",
        (
            "cli/test_trust.py::test_a_study_file_runs_its_code_only_with_trust",
            "cli/test_trust.py::test_not_even_trusted_names_call_what_is_no_module",
            "cli/test_trust.py::test_a_study_file_names_a_ray_cluster_only_with_trust",
            "cli/test_trust.py::test_a_planted_module_does_not_run",
        ),
    ),
)


class Recorder:
    """Keeps the tests that are wanted, in the order of their files, and what came of each case."""

    def __init__(self, wanted: set[str]) -> None:
        self.wanted, self.total = wanted, 0
        self.passed: defaultdict[str, int] = defaultdict(int)
        self.faults: defaultdict[str, list[str]] = defaultdict(list)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if plain_id(item.nodeid) in self.wanted]
        self.total = len(items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = plain_id(report.nodeid)
        if report.passed and report.when == "call":
            self.passed[test] += 1
            if sys.stderr.isatty():
                print(f"\r{sum(self.passed.values())} of {self.total} ", end="", file=sys.stderr, flush=True)
        elif not report.passed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = (
                f"not run: {report.longrepr[2]}" if isinstance(report.longrepr, tuple) else str(crash.message if crash else report.longrepr)
            )
            self.faults[test].append(f"{report.nodeid.partition('::')[2]}: {' '.join(why.split())[:200]}")
            print(f"{report.nodeid}\n{report.longreprtext}", file=sys.stderr, flush=True)


def plain_id(node: str) -> str:
    """A test's FILE::NAME, below tests/ and without its case."""
    return node.partition("[")[0].removeprefix("tests/")


def run_attacks(attacks: Sequence[Attack]) -> int:
    """Run them all in one session, so that they share federations; how many were not held off."""
    wanted = {test for attack in attacks for test in attack.tests}
    files = sorted({str(ROOT / "tests" / test.partition("::")[0]) for test in wanted})
    recorder: Any = Recorder(wanted)
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        pytest.main(["-n", "0", "-p", "no:cacheprovider", "--rootdir", str(ROOT), *files], plugins=[recorder])
    wrong = 0
    print("| attack | who | what happened | tests | held |\n| --- | --- | --- | ---: | --- |")
    for attack in attacks:
        faults = [fault for test in attack.tests for fault in recorder.faults[test]]
        faults += [f"{test} did not run" for test in attack.tests if not recorder.passed[test] and not recorder.faults[test]]
        count = sum(recorder.passed[test] for test in attack.tests) + len(faults)
        wrong += bool(faults)
        outcome = f"**{'; '.join(faults)}**".replace("|", "\\|") if faults else attack.outcome
        print(f"| {attack.name} | {attack.who} | {outcome} | {count} | {'**no**' if faults else 'yes'} |", flush=True)
    print(f"\n{len(attacks)} attacks, {sum(recorder.passed.values())} tests passed, {wrong} attacks not held off")
    return wrong


def main() -> int:
    """The attacks, or the soak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="attacks whose name or attacker holds one of these words")
    parser.add_argument("--quick", action="store_true", help="only those that need no processes of their own")
    parser.add_argument("--soak", type=float, help="so many minutes of rounds with random kills and malicious messages instead")
    parser.add_argument("--seed", type=int, default=0, help="of the kills and the messages")
    options = parser.parse_args()
    if options.soak:
        sys.path[:0] = [str(ROOT / "tests")]
        from deploy.soak import soak

        with tempfile.TemporaryDirectory() as folder:
            return soak(Path(folder), options.soak, options.seed)
    chosen = [attack for attack in ATTACKS if not options.only or any(word in f"{attack.name} {attack.who}" for word in options.only)]
    chosen = [attack for attack in chosen if attack.quick or not options.quick]
    if not chosen:
        parser.error("no attack has these words")
    return min(run_attacks(chosen), 1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a session to a server that has ended leaves threads that would wait forever
