"""What each method of a study is there for."""

import pytest

from analysis.made_records import ALONE, AVG, UNIFORM
from coterie._util.errors import UserError
from coterie.analysis.roles import assign_roles


def test_roles_are_read_from_specs() -> None:
    tuned = ["fedavg+rate(lr=0.1)", "fedgroup(groups=2)+rate(lr=0.3)", "fedgroup(groups=2,assign=random)+rate(lr=0.1)"]
    roles = assign_roles([*tuned, UNIFORM, ALONE, "fedavg+finetune(epochs=2)", "fedsim(assign=random)", "my_method(x=1)", "ifca"])
    assert roles.baseline == tuned[0]
    assert roles.controls == {tuned[1]: {"random": tuned[2]}}
    assert roles.of[tuned[2]] == "control"
    assert [roles.first(role) for role in ("uniform", "local", "finetuned")] == [UNIFORM, ALONE, "fedavg+finetune(epochs=2)"]
    assert roles.methods == [tuned[1], "fedsim(assign=random)", "my_method(x=1)", "ifca"]  # random without its method is no control
    assert roles.uniform_weights == {UNIFORM, "fedsim(assign=random)", "ifca"}
    assert assign_roles(["fedprox", "fedsim"]).baseline == "fedprox"
    with pytest.raises(UserError, match="not in the study"):
        assign_roles([AVG], "fedprox")
