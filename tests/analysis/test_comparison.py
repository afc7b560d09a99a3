"""From evidence to findings: arithmetic on records written by hand, and reading of real, partial and damaged studies."""

import shutil
from math import isnan, nan
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import adjusted_rand_score

import coterie as ct
from coterie.analysis import Findings, compare_evidence, open_comparison
from coterie.analysis.findings import findings_of
from coterie.analysis.quality import agreement
from coterie.analysis.records import COSTS, Records, records_of
from coterie.analysis.roles import roles_of
from coterie.analysis.verdict import verdicts
from coterie.core.arrays import Array
from coterie.core.errors import UserError
from coterie.core.local import Local
from coterie.core.plan import Plan
from coterie.core.rng import generator, key
from coterie.evidence import Evidence
from coterie.evidence.settings import Settings
from coterie.run.execution import Execution
from coterie.run.study import Study

AVG, UNIFORM, ALONE = "fedavg", "fedavg(weighting=uniform)", "local"
GROUP, RANDOM, ORACLE = "fedgroup(groups=2)", "fedgroup(groups=2,assign=random)", "fedgroup(groups=2,assign=oracle)"
SIM, SIM_RANDOM = "fedsim(clusters=2)", "fedsim(clusters=2,assign=random)"


def by_hand(right: dict[str, Array], groups: dict[str, Array] | None = None, validation: Array | None = None) -> Records:
    """Records of clients with 100 test samples each, from (seeds, rounds + 1, clients) right answers for each method."""
    cube = np.stack([np.asarray(values) for values in right.values()])
    m, s, t, n = cube.shape
    ones = np.broadcast_to(np.arange(m)[:, None, None] + 1.0, (m, s, t))  # method i pays i + 1 of everything a round
    settings = Settings(methods=tuple(right), data="by hand", seeds=tuple(range(s)), plan=Plan(rounds=t - 1))
    return Records(
        evidence=Evidence(settings, pa.table({})),
        settings=settings,
        ids=tuple(f"client-{i}" for i in range(n)),
        train=np.full(n, 10),
        test=np.full(n, 100),
        truth=np.arange(n) % 2,
        rounds=np.arange(t),
        right=cube,
        loss=np.zeros((m, s, t)),
        validation=np.full((m, s, t), nan) if validation is None else validation,
        costs=dict.fromkeys(COSTS, ones),
        server_seconds=ones,
        groups=groups or {},
        clusters={},
        silhouette=np.full((m, s), nan),
        stopped={},
        faults=(),
    )


def flat(points: float, seeds: int = 6, rounds: int = 2, clients: int = 4) -> Array:
    """The same right answers everywhere, but for a fixed spread over seeds."""
    return np.full((seeds, rounds + 1, clients), points) + np.arange(seeds)[:, None, None] % 3


def test_scores_by_hand() -> None:
    curve = np.array([[[0], [50], [70], [60]]])  # one seed, rounds 0 to 3, one client of 100 samples
    validation = np.array([[[nan, 0.4, 0.3, 0.4]]])
    found = findings_of(by_hand({AVG: curve}, validation=validation), scores=("final", "last10", "mean", "validated", "max"))
    scores = {name: estimate.mean for name, estimate in found.methods[AVG].scores.items()}
    # round 0 is the start and counts in none; of the rounds that validate equally well the first is taken
    assert scores == pytest.approx({"final": 0.6, "last10": 0.6, "mean": 0.6, "validated": 0.5, "max": 0.7})
    assert "max" not in findings_of(by_hand({AVG: curve})).methods[AVG].scores
    stability = found.methods[AVG].stability
    assert stability.change.mean == pytest.approx((0.2 + 0.1) / 2)
    assert stability.median_rounds == 2  # the target is FedAvg's own mean score, .6
    assert found.methods[AVG].cost.passes == 4
    assert found.methods[AVG].cost.passes_to_target == 3  # rounds 0, 1 and 2


def test_the_decomposition_adds_up_and_takes_only_seeds_that_all_have() -> None:
    rng = generator(key(0, "decomposition"))
    right = {label: rng.integers(0, 100, (8, 3, 5)) for label in (AVG, UNIFORM, SIM, SIM_RANDOM, GROUP, RANDOM)}
    right[UNIFORM][3, 2:] = -1  # diverged: neither FedAvg's nor FedSim's fourth seed may count
    found = findings_of(by_hand(right))
    for label, names in ((SIM, ["weights", "groups", "similarity"]), (GROUP, ["groups", "similarity"])):
        parts = found.methods[label].decomposition
        assert parts is not None
        assert [step.name for step in parts.steps] == names  # FedGroup weighs by samples, as FedAvg does
        assert sum(step.gain.mean for step in parts.steps) == pytest.approx(parts.total.mean, abs=1e-12)
        assert {step.gain.n for step in parts.steps} == {parts.total.n} == {7 if label == SIM else 8}
    assert found.methods[UNIFORM].over_baseline["final"].missing == 1


def test_fairness_by_hand() -> None:
    base, own, alone = flat(50), flat(50), flat(80)
    own[:, :, 0] += 20  # one client gains 20, one loses 10, two stay
    own[:, :, 3] -= 10
    fairness = findings_of(by_hand({AVG: base, GROUP: own, ALONE: alone})).methods[GROUP].fairness
    assert fairness.gain == pytest.approx([0.2, 0, 0, -0.1])
    assert (fairness.worse, fairness.worse_than_alone) == (0.25, 1)
    assert fairness.gain_over_local == pytest.approx([-0.1, -0.3, -0.3, -0.4])
    assert fairness.worst.mean == pytest.approx(0.41) == fairness.bottom_decile.mean


def test_groups_are_judged() -> None:
    true, collapsed, other = np.array([0, 1, 0, 1]), np.zeros(4, int), np.array([0, 0, 1, 1])
    lanes = np.stack([np.stack([other, true, true]), np.stack([collapsed] * 3), np.stack([true, other, true])])
    quality = findings_of(by_hand({AVG: flat(50, 3), GROUP: flat(60, 3)}, {GROUP: lanes})).methods[GROUP].grouping
    assert quality is not None
    assert quality.ari is not None
    assert quality.ari.values == pytest.approx([1, 0, 1])
    assert quality.collapse_rate == pytest.approx(1 / 3)
    assert quality.used.mean == pytest.approx(5 / 3)
    cross = adjusted_rand_score(true, other)
    assert quality.between_rounds == pytest.approx((cross + 1 + 1 + 1 + cross + cross) / 6)
    assert quality.between_seeds == pytest.approx((0 + 1 + 0) / 3)
    assert findings_of(by_hand({AVG: flat(50)})).methods[AVG].grouping is None


def test_agreement_is_scikit_learns_and_leaves_out_clients_without_a_group() -> None:
    rng = generator(key(0, "agreement"))
    for size in (1, 2, 30):
        one, two = rng.integers(0, 4, (2, size))
        assert agreement(one, two) == pytest.approx(adjusted_rand_score(one, two))
    assert agreement(np.array([0, 1, -1]), np.array([1, 0, 1])) == 1
    assert isnan(agreement(np.array([-1, 0]), np.array([0, -1])))


def test_roles_are_read_from_specs() -> None:
    tuned = ["fedavg+rate(lr=0.1)", "fedgroup(groups=2)+rate(lr=0.3)", "fedgroup(groups=2,assign=random)+rate(lr=0.1)"]
    roles = roles_of([*tuned, UNIFORM, ALONE, "fedavg+finetune(epochs=2)", "fedsim(assign=random)", "my_method(x=1)", "ifca"])
    assert roles.baseline == tuned[0]
    assert roles.controls == {tuned[1]: {"random": tuned[2]}}
    assert roles.of[tuned[2]] == "control"
    assert [roles.first(role) for role in ("uniform", "local", "finetuned")] == [UNIFORM, ALONE, "fedavg+finetune(epochs=2)"]
    assert roles.methods == [tuned[1], "fedsim(assign=random)", "my_method(x=1)", "ifca"]  # random without its method is no control
    assert roles.uniform_weights == {UNIFORM, "fedsim(assign=random)", "ifca"}
    assert roles_of(["fedprox", "fedsim"]).baseline == "fedprox"
    with pytest.raises(UserError, match="not in the study"):
        roles_of([AVG], "fedprox")


def sentence(right: dict[str, Array]) -> str:
    return verdicts(findings_of(by_hand(right)))[-1]


def test_the_verdict_tells_where_a_gain_comes_from() -> None:
    from_similarity = sentence({AVG: flat(50), GROUP: flat(58), RANDOM: flat(50)})
    assert "fedgroup(groups=2) gains 8.0 points over fedavg" in from_similarity
    assert "0 % of clients lose" in from_similarity
    assert "Random groups of the same sizes gain 0.0: the gain is from similarity" in from_similarity
    assert "the gain is not from similarity" in sentence({AVG: flat(50), GROUP: flat(58), RANDOM: flat(58)})
    assert "only 2.0 of the 8.0 points are from similarity" in sentence({AVG: flat(50), GROUP: flat(58), RANDOM: flat(56)})
    lost = sentence({AVG: flat(50), GROUP: flat(42), RANDOM: flat(45), ALONE: flat(60)})
    assert "loses 8.0 points to fedavg" in lost
    assert "100 % of clients lose" in lost
    assert "Clients that train alone do 18.0 points better" in lost
    assert "no clear difference" in sentence({AVG: flat(50), GROUP: flat(50), RANDOM: flat(50)})


def test_a_single_seed_cannot_test_and_says_so() -> None:
    first, last = verdicts(findings_of(by_hand({AVG: flat(50, 1), GROUP: flat(58, 1), RANDOM: flat(50, 1)})))
    assert first.startswith("One seed cannot test")
    assert "differs by +8.0 points from fedavg" in last
    assert "gain is" not in last
    few = verdicts(findings_of(by_hand({AVG: flat(50, 4), GROUP: flat(58, 4)})))
    assert few[0].startswith("4 seeds cannot reach 5 %")
    assert "is 8.0 points ahead of fedavg" in few[1]
    assert "4 seeds are too few for Wilcoxon's test of 1 method(s) to reach 5 %: run at least 5" in few[1]


def test_a_method_that_always_diverges_cannot_be_judged() -> None:
    gone = flat(58)
    gone[:, 2:] = -1
    found = findings_of(by_hand({AVG: flat(50), GROUP: gone, "fedprox": flat(51)}))
    said = verdicts(found)
    assert "fedgroup(groups=2) cannot be judged" in said[0]
    assert isnan(found.methods[GROUP].corrected_p)
    assert found.methods["fedprox"].corrected_p == pytest.approx(2**-6)  # what could not be tested does not weigh on the others


SETTINGS = Settings(
    methods=(AVG, GROUP, RANDOM, SIM, "fedprox(mu=1e30)"),
    data="digits/rotated(clients=8,groups=2,validation=0.2)",
    seeds=(0, 1),
    plan=Plan(rounds=4, local=Local(lr=0.1)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study on disk: two waves of one seed, two segments each; one method diverges at once."""
    out = tmp_path_factory.mktemp("comparison") / "study"
    Study.prepare(SETTINGS).run(out=out, execution=Execution(engine="loop", checkpoint_every=2, seeds_per_wave=1))
    return out


def test_records_hold_what_the_result_shows(folder: Path) -> None:
    evidence = Evidence.open(folder)
    records = records_of(evidence)
    rounds = ct.Result(evidence).rounds
    for row in rounds.itertuples():
        at = SETTINGS.methods.index(str(row.method)), SETTINGS.seeds.index(int(row.seed)), int(row.round)  # type: ignore[arg-type]
        assert records.accuracy[at] == pytest.approx(row.accuracy)
        assert records.loss[at] == pytest.approx(row.loss)
        assert records.costs["bytes_up"][at] == row.bytes_up
        assert records.validation[at] == row.validation
    assert records.groups[GROUP].shape == (2, 5, 8)
    assert set(records.clusters) == {SIM}
    assert set(records.clusters[SIM]) == {(seed, round_) for seed in (0, 1) for round_ in range(1, 5)}
    assert ("fedprox(mu=1e30)", 0) in records.stopped
    assert np.isfinite(records.silhouette[SETTINGS.methods.index(GROUP)]).all()


def test_a_study_on_disk_becomes_a_comparison(folder: Path) -> None:
    comparison = open_comparison(folder)
    (found,) = comparison.federations
    assert found.seeds == (0, 1)
    assert found.methods[SIM].grouping is not None
    assert found.methods[GROUP].decomposition is not None
    assert 0 <= found.methods[GROUP].scores["validated"].mean <= 1
    said = comparison.verdicts()[SETTINGS.data]
    assert any("fedprox(mu=1e30) cannot be judged" in sentence for sentence in said)
    assert list(comparison.table()["method"]) == list(SETTINGS.methods)
    assert comparison.as_json()["table"][0]["ari"] is None
    assert comparison.faults == ()
    assert comparison.ranking is None
    mean, low, high = found.curves[AVG]
    assert mean == pytest.approx(found.records.accuracy[0].mean(axis=0))
    assert ((low <= mean) & (mean <= high)).all()


def test_memory_and_disk_are_compared_alike(folder: Path) -> None:
    memory = Study.prepare(SETTINGS).run(execution=Execution(engine="loop")).evidence
    one, two = compare_evidence([memory]).table(), open_comparison(folder).table()
    same = [name for name in one if name != "server_seconds"]
    assert one[same].equals(two[same])


def damaged(folder: Path, tmp_path: Path, file: str, segment: int) -> Path:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    path = sorted((copy / "segments").iterdir())[segment] / file
    path.write_bytes(path.read_bytes()[:50])
    return copy


@pytest.mark.parametrize(
    ("file", "segment", "seeds"), [("clients.parquet", 1, (1,)), ("clients.parquet", 2, (0, 1)), ("lanes.json", 0, (0, 1))]
)
def test_a_damaged_file_is_named_and_the_rest_still_counts(
    folder: Path, tmp_path: Path, file: str, segment: int, seeds: tuple[int, ...]
) -> None:
    comparison = open_comparison(damaged(folder, tmp_path, file, segment))
    assert len(comparison.faults) == 1
    assert file in comparison.faults[0]
    assert comparison.federations[0].seeds == seeds


@pytest.mark.parametrize("table", ["groups", "notes", "mixing", "timings", "rounds"])
def test_other_damaged_tables_cost_only_their_own_numbers(folder: Path, tmp_path: Path, table: str) -> None:
    comparison = open_comparison(damaged(folder, tmp_path, f"{table}.parquet", 1))
    assert f"{table}.parquet" in comparison.faults[0]
    whole, rest = (c.federations[0].methods[AVG].scores["final"].mean for c in (open_comparison(folder), comparison))
    assert whole == rest


def test_a_study_that_is_cut_short_says_so(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    first, second, third, fourth = sorted((copy / "segments").iterdir())
    shutil.rmtree(fourth)  # the second seed stands at round 2
    found = open_comparison(copy).federations[0]
    assert found.seeds == (0,)
    assert "Only 1 of 2 seeds are complete and compared." in verdicts(found)
    shutil.rmtree(second)  # and so does the first
    found = open_comparison(copy).federations[0]
    assert (found.seeds, found.scope.last) == ((0, 1), 2)
    assert any(said.startswith("The study stands at round 2 of 4") for said in verdicts(found))
    shutil.rmtree(first)
    shutil.rmtree(third)
    with pytest.raises(UserError, match="no evaluated round yet"):
        open_comparison(copy)


def test_several_federations_are_ranked_and_a_broken_one_is_named(folder: Path, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        shutil.copytree(folder, tmp_path / name)
    (tmp_path / "two" / "settings.json").write_text("{")
    (tmp_path / "compare.json").write_text("{")
    comparison = open_comparison(tmp_path)
    assert len(comparison.federations) == 2
    assert [name in fault for name, fault in zip(("compare.json", "settings.json"), comparison.faults, strict=True)] == [True, True]
    assert comparison.ranking is not None
    assert comparison.ranking.ranks[SETTINGS.methods.index("fedprox(mu=1e30)")] == 5
    with pytest.raises(UserError, match="holds no study"):
        open_comparison(tmp_path / "nowhere")


def test_any_two_methods_can_be_compared(folder: Path) -> None:
    found: Findings = open_comparison(folder).federations[0]
    difference = found.paired(SIM, GROUP, "max")
    assert difference.mean == pytest.approx(-found.paired(GROUP, SIM, "max").mean)
    assert found.by_round(SIM, GROUP).rounds.tolist() == [1, 2, 3, 4]
