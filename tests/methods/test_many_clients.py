"""Methods above the number of clients from which on landmarks stand for everybody: the switch is noted, plain groups are found as ever."""

import json

import pytest
from sklearn.metrics import adjusted_rand_score

import coterie as ct

DATA = "digits/rotated(clients=24,groups=2)"
SWITCHES = (
    "grouping.clustering",
    "grouping.neighbours",
    "grouping.kmeans",
    "methods.cfl",
    "methods.flhc",
    "methods.grouped",
    "methods.guard",
    "methods.fedex",
    "methods.robust",
    "methods.robust_rules",
    "methods.simprox",
)
SKETCHED = "fesem(groups=2,assign_on=sketch,sketch=64)"
EXPERTS = "fedex(groups=2,combiner=own)"
CUT = "cfl(eps1=9,eps2=0,gamma=0.4)"
GROUPED = ["robust(groups=2,trim=0)", "robust(groups=2,trim=0.1)", "fesem(groups=2)", SKETCHED, EXPERTS, "flhc(groups=2,warmup=0)", CUT]


def many(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SWITCHES:
        monkeypatch.setattr(f"coterie.{name}.MANY", 10)
    monkeypatch.setattr("coterie.methods.fesem.MANY", 10)
    monkeypatch.setattr("coterie.core.vectors.MANY_ROWS", 10)


def noted(result: ct.Result, method: str, name: str = "landmarks") -> list[int]:
    notes = result.evidence.frame("notes")
    own = notes[(notes["method"] == method) & (notes["name"] == name)]
    return [json.loads(value) for value in own["value"]]


@pytest.mark.parametrize("method", GROUPED)
def test_the_groups_are_those_of_the_exact_form(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> ct.Result:
        return ct.study(method, data=DATA, rounds=2, epochs=3, lr=0.1, seeds=[0])

    exact = run()
    many(monkeypatch)
    found = run()
    last = [result.groups.query("round == 2").sort_values("client")["group"].tolist() for result in (exact, found)]
    assert adjusted_rand_score(*last) == 1.0
    assert noted(exact, method) == []
    assert set(noted(found, method)) == {2048}


def test_a_guard_looks_at_landmarks_and_finds_the_same_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> ct.Result:
        return ct.study("fesem(groups=2)+guard", data=DATA, rounds=2, epochs=3, lr=0.1, seeds=[0])

    exact = run()
    many(monkeypatch)
    found = run()
    last = [result.groups.query("round == 2").sort_values("client")["group"].tolist() for result in (exact, found)]
    assert adjusted_rand_score(*last) == 1.0
    assert noted(exact, "fesem(groups=2)+guard", "held_out_landmarks") == []
    assert set(noted(found, "fesem(groups=2)+guard", "held_out_landmarks")) == {512}
    assert found.table()["final"].tolist() == pytest.approx(exact.table()["final"].tolist(), abs=0.02)


@pytest.mark.parametrize("method", ["simprox", "simprox(similarity_of=updates)", "fedsim(clusters=2)"])
def test_weights_are_those_of_the_exact_form(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> ct.Result:
        return ct.study(method, data=DATA, rounds=1, epochs=1, seeds=[0])

    exact = run()
    many(monkeypatch)
    found = run()
    weights = [result.evidence.frame("mixing").sort_values("source")["weight"].tolist() for result in (exact, found)]
    assert weights[0] == pytest.approx(weights[1], rel=1e-6)  # everybody is a landmark here: nothing is lost
    assert noted(found, method) == [1024 if method.startswith("simprox") else 2048]


@pytest.mark.parametrize("pairs", [1 << 27, 0])
def test_neighbours_are_those_of_all_pairs(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> ct.Result:
        return ct.study("neighbourprox(gamma=0.5)", data=DATA, rounds=3, epochs=1, cohort=16, seeds=[0])

    exact = run()
    many(monkeypatch)
    monkeypatch.setattr("coterie.grouping.neighbours.PAIRS", pairs)
    monkeypatch.setattr("coterie.grouping.neighbours.OPENED", 9)  # all cells: what is found then is exact
    found = run()
    assert found.rounds["loss"].tolist() == exact.rounds["loss"].tolist()
    assert noted(found, "neighbourprox(gamma=0.5)") == ([] if pairs else [4, 4])
    assert noted(found, "neighbourprox(gamma=0.5)", "compared_with") == ([16, 21] if pairs else [])


def test_a_client_that_comes_later_joins_by_the_same_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> ct.Result:
        return ct.study(EXPERTS, data=DATA, rounds=3, epochs=3, lr=0.1, dropout=0.6, seeds=[0])

    exact = run()
    monkeypatch.setattr("coterie.methods.fedex.MANY", 1)
    found = run()
    last = [result.groups.query("round == 3").sort_values("client")["group"].tolist() for result in (exact, found)]
    assert adjusted_rand_score(*last) == 1.0


def test_newcomers_are_asked_in_pieces_and_placed_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> ct.Result:
        return ct.study("ifca(groups=3,assign=random)", data=DATA, rounds=2, cohort=5, seeds=[0])

    whole = run()
    monkeypatch.setattr("coterie.core.method.MAX_NEWCOMERS", 7)
    pieces = run()
    assert whole.groups["group"].tolist() == pieces.groups["group"].tolist()
    assert whole.rounds["loss"].tolist() == pieces.rounds["loss"].tolist()  # of everybody, most of whom are newcomers
