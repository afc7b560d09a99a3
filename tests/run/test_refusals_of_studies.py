"""What cannot be trained is explained before anything is written; what came to nothing is not passed over."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import coterie as ct
from coterie._util.errors import UserError
from coterie.data.federation import Federation, Parts
from coterie.engines.loss import make_per_sample
from coterie.engines.sampling import has_single_leftover, iterate_batches
from coterie.testing.worlds import make_federation

OWN = "run.run_own_models"  # the module beside this one


def federation() -> Federation:
    return make_federation((12, 7, 5, 9))


def test_a_loss_of_torch_that_averages_is_taken_sample_by_sample() -> None:
    mean, plain = (ct.study("fedavg", data=federation(), rounds=2, model=f"{OWN}:Plain", loss=loss) for loss in losses())
    assert mean.rounds["loss"].tolist() == plain.rounds["loss"].tolist()
    kept = nn.CrossEntropyLoss(label_smoothing=0.2)
    outputs, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    assert torch.allclose(make_per_sample(kept)(outputs, y).mean(), kept(outputs, y))
    assert kept.reduction == "mean"  # the user's own object is left alone


def losses() -> tuple[nn.Module, nn.Module]:
    return nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="none")


def test_a_loss_of_one_number_for_all_is_explained() -> None:
    def mean(outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, y)

    with pytest.raises(UserError, match=r"a tensor of shape \(\) for 2 samples: let it give one number a sample"):
        ct.study("fedavg", data=federation(), rounds=1, loss=mean)


def test_a_wrong_number_of_outputs_says_how_many_classes_there_are(tmp_path: Path) -> None:
    for outputs in (2, 7):
        with pytest.raises(UserError, match="has 3 classes: let it give 3 numbers a sample"):
            ct.study("fedavg", data=federation(), rounds=1, model=f"{OWN}:Plain(outputs={outputs})", out=tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_a_model_for_other_samples_is_explained() -> None:
    with pytest.raises(UserError, match=r"cannot take samples of shape \(5,\)"):
        ct.study("fedavg", data=federation(), rounds=1, model=f"{OWN}:Plain(inputs=6)")


def test_a_last_batch_of_one_joins_the_one_before_it() -> None:
    whole = list(iterate_batches(5, np.arange(7), 3, 2, None))
    joined = list(iterate_batches(5, np.arange(7), 3, 2, None, least=2))
    assert [len(batch) for batch in whole] == [3, 3, 1, 3, 3, 1]
    assert [len(batch) for batch in joined] == [3, 4, 3, 4]
    assert np.concatenate(joined).tolist() == np.concatenate(whole).tolist()
    assert [len(batch) for batch in iterate_batches(5, np.arange(1), 3, 1, None, least=2)] == [1]  # there is none before it
    assert has_single_leftover(np.array([6, 7]), 3)
    assert not has_single_leftover(np.array([6, 8]), 3)
    assert not has_single_leftover(np.array([1, 2]), None)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_batch_norm_trains_where_a_last_batch_has_one_sample(engine: str) -> None:
    found = ct.study("fedavg", data=federation(), model=f"{OWN}:Normed", batch_size=3, rounds=1, execution=ct.Execution(engine=engine))  # type: ignore[arg-type]
    assert not found.problems  # 7 = 3 + 3 + 1
    assert found.rounds["loss"].notna().all()


def test_batch_norm_that_cannot_be_trained_is_explained() -> None:
    with pytest.raises(UserError, match="batch norm, which cannot train on one sample: use batch_size=2"):
        ct.study("fedavg", data=federation(), model=f"{OWN}:Normed", batch_size=1, rounds=1)
    with pytest.raises(UserError, match="client 'client-2' has no more"):
        ct.study("fedavg", data=make_federation((12, 7, 1)), model=f"{OWN}:Normed", rounds=1)


def test_a_study_of_which_nothing_reached_the_end_raises_with_what_there_is() -> None:
    with pytest.raises(ct.NothingFinishedError, match=r"None of 2 runs reached the end: fedprox\(mu=1e30\), diverged") as caught:
        ct.study("fedprox(mu=1e30)", data=federation(), rounds=4, seeds=(0, 1), epochs=4)
    assert len(caught.value.result.problems) == 2
    assert caught.value.result.table()["seeds"].tolist() == [0]


def test_one_method_that_fails_beside_one_that_does_not_is_a_result() -> None:
    found = ct.study(["fedavg", "fedprox(mu=1e30)"], data=federation(), rounds=4, epochs=4)
    assert len(found.problems) == 1


@dataclass(frozen=True, kw_only=True)
class Stumbling(ct.FedAvg):
    """Raises in its second round."""

    def round(self, state: Any, ctx: ct.Context) -> Any:
        if ctx.round_ == 2:
            raise ArithmeticError("a slip of the pen")
        return super().round(state, ctx)


def test_a_method_that_raises_is_told_with_its_reason() -> None:
    found = ct.study([ct.FedAvg(), Stumbling()], data=federation(), rounds=3)
    ((key, end),) = found.problems.items()
    assert (key.seed, end.round_, end.status) == (0, 1, "failed")
    assert "a slip of the pen" in end.reason


def test_test_samples_among_training_samples_are_refused() -> None:
    whole = make_federation((4, 4))
    leaking = Parts.from_lists([whole.test[0], np.r_[whole.test[1], whole.train[1][:1]]])
    for part in ("test", "validation"):
        with pytest.raises(UserError, match=f"Client 'client-1' of 'tiny' has {part} samples among its training samples"):
            ct.study("fedavg", data=whole.replace(**{part: leaking}), rounds=1)
    later = whole.replace(later=((1, whole.replace(test=leaking)),))
    with pytest.raises(UserError, match="has test samples among"):
        later.check_disjoint()
    whole.replace(
        test=Parts.from_lists([whole.train[1], whole.train[0]])
    ).check_disjoint()  # what another trains on is no leak of one's own


@pytest.mark.parametrize(
    ("method", "plan", "told"),
    [
        ("ifca(groups=9)", {}, r"'ifca\(groups=9\)' makes 9 groups, and there are 4 clients: give groups=4 or fewer"),
        ("fesem(groups=5)+finetune", {}, "makes 5 groups, and there are 4 clients"),
        ("fedsim(clusters=3)", {"cohort": 2}, "makes 3 clusters, and a cohort has 2 clients: give clusters=2 or fewer"),
        ("fesem(groups=3,warmup_by=cohort)", {"cohort": 2}, "makes 3 groups, and a cohort has 2 clients"),
        ("fedsim(clusters=5)", {}, "makes 5 clusters"),  # the default, and said
        *((f"{name}(groups=5)", {}, "makes 5 groups") for name in ("fedgroup", "fesem_ma", "fedex", "hypocluster", "flhc", "robust")),
    ],
)
def test_more_groups_than_clients_are_refused_before_anything_is_run(method: str, plan: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=told):
        ct.study(method, data="heart", rounds=1, out=tmp_path / "s", **plan)
    with pytest.raises(UserError, match=told):  # also where only the second federation is too small
        ct.compare(["fedavg", method], data=["digits/iid(clients=12)", "heart"], rounds=1, out=tmp_path / "c", **plan)
    assert not list(tmp_path.iterdir())


def test_as_many_groups_as_clients_are_run() -> None:
    assert ct.study("ifca(groups=4)", data="heart", rounds=1).table()["final"].notna().all()
    assert ct.study("ifca(groups=3)", data="heart", rounds=1, cohort=2).table()["final"].notna().all()  # over the rounds all can be taken
    assert ct.study("fedsim", data="heart", rounds=1, cohort=2).table()["final"].notna().all()  # nobody asked for five clusters
    assert ct.study("fedgroup(groups=auto,most=9)", data="heart", rounds=1).table()["final"].notna().all()  # found, not told
