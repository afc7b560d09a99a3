"""Estimators whose rows belong to clients: training is federated, and each client is predicted for by the model that it is served.

`fit`, `predict` and `score` take the client of each row as `clients`. Rows of unknown clients are answered by the common model: what the
method serves a client that has no labels. `place` gives a new client the model that the method chooses by its labelled rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import LabelEncoder, StandardScaler
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from coterie._util.errors import UserError
from coterie.core.arrays import Array, Doubles, Floats
from coterie.core.method import Method
from coterie.data.federation import Federation, Parts
from coterie.deploy.bundle.bundle import Bundle
from coterie.deploy.bundle.export import served_result
from coterie.evidence.settings import Settings
from coterie.run.execution import Execution, make_plan
from coterie.run.method_sets import ChosenMethods
from coterie.run.result import Result, check_finished
from coterie.run.study import Study

if TYPE_CHECKING:
    import pandas as pd

ALL_ROWS = "all rows"  # the only client, where none are named
COMMON = "\0common"  # takes no part and has no labels: what it is served is the common model


class _FederatedEstimator(ABC, BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share: data of clients in, one study of one seed, the bundles of all clients."""

    _task: ClassVar[Literal["classification", "regression"]]

    def __init__(
        self,
        method: str | Method[Any] = "auto",
        *,
        model: str = "mclr",
        rounds: int = 30,
        epochs: int = 1,
        batch_size: int = 32,
        lr: float = 0.1,
        cohort: int | None = None,
        scale: bool = True,
        random_state: int | None = 0,
        device: str = "auto",
    ) -> None:
        self.method = method
        self.model = model
        self.rounds = rounds
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.cohort = cohort
        self.scale = scale
        self.random_state = random_state
        self.device = device

    def _fit(self, X: Any, y: Array, classes: tuple[str, ...], clients: Any) -> None:
        owners = _name_clients(clients, len(X))
        if len(X) < 2:
            raise ValueError("n_samples=1: there is nothing to learn from one row.")
        if COMMON in owners:
            raise UserError(f"A client cannot be called {COMMON!r}: give it another name.")
        self.scaler_ = StandardScaler().fit(X) if self.scale else None  # means and deviations of all rows: sums of clients' sums
        federation = _make_federation(self._scale(X), y, classes, owners, self._task)
        self.clients_ = np.array(federation.ids, dtype=object)
        self.n_clients_ = len(federation)
        known = _add_common_client(federation)
        seed = self.random_state if self.random_state is not None else int(np.random.default_rng().integers(2**31))
        self._result: Result | None = self._train(known, seed)
        served = served_result(self._result)
        self.bundle_ = served.bundle([name for number, name in enumerate(known.ids) if number not in served.untrained])
        self.placed_: dict[str, Bundle] = {}

    def _train(self, federation: Federation, seed: int) -> Result:
        plan = make_plan(
            {
                "rounds": self.rounds,
                "epochs": self.epochs,
                "batch_size": self.batch_size,
                "lr": self.lr,
                "cohort": self.cohort,
                "evaluate_every": self.rounds,
            },
            None,
            None,
        )
        chosen = ChosenMethods.resolve(self.method)
        if len(chosen.labels) != 1:
            raise UserError(f"An estimator has one method, not {', '.join(chosen.labels)}.")
        settings = Settings(methods=chosen.labels, data=federation.name, model=self.model, seeds=(seed,), plan=plan)
        study = Study.prepare(settings, federation=federation, methods=chosen.methods, is_scored=False)
        return check_finished(study.run(execution=Execution(device=self.device)))

    def place(self, X: Any, y: Any, clients: Any) -> "_FederatedEstimator":
        """Place new clients by their labelled rows: each is served the model that the method's own rule gives it.

        Args:
            X: (n, features) the rows.
            y: (n,) their labels or targets.
            clients: The client of each row, or one name for all.

        Returns:
            The estimator, which now predicts for these clients.
        """
        check_is_fitted(self)
        if self._result is None:
            raise UserError("A loaded estimator holds no study to place clients by: place them before it is saved, or fit it again.")
        X, y = validate_data(self, X, y, reset=False, y_numeric=self._task == "regression", dtype=np.float64)
        owners = _name_clients(clients, len(X))
        if known := sorted({*owners} & {*self.clients_}):
            raise UserError(f"Client {known[0]!r} took part in training: only other clients are placed.")
        new = _make_federation(self._scale(X), self._encode(y), self._class_names(), owners, self._task)
        served = served_result(self._result, newcomers=new)
        self.placed_ |= {name: served.bundle([name]) for name in new.ids}
        return self

    def _answer(self, X: Any, clients: Any) -> Iterator[tuple[Array, Any]]:
        """For each client of some rows: which rows they are, and what its model answers."""
        rows = self._scale(X)
        owners = np.array(_name_clients(clients, len(rows), default=COMMON), dtype=object)
        for name in dict.fromkeys(owners.tolist()):
            chosen = np.flatnonzero(owners == name)
            bundle = self.placed_.get(name, self.bundle_)
            if name not in bundle.clients and COMMON not in bundle.clients:
                raise UserError(f"Method {self.method} trains each client alone, so there is no common model: name clients that it knows.")
            yield chosen, bundle.answer(rows[chosen], name if name in bundle.clients else COMMON)

    def _scale(self, X: Array) -> Floats:
        scaled = X if self.scaler_ is None else self.scaler_.transform(X)
        return np.asarray(scaled, dtype=np.float32)

    @abstractmethod
    def _encode(self, y: Array) -> Array:
        """Labels as the federation has them."""

    @abstractmethod
    def _class_names(self) -> tuple[str, ...]:
        """The names of the classes, or of the target."""

    def __getstate__(self) -> dict[str, Any]:
        """Models and settings. The study, which holds the training rows, stays behind."""
        state: dict[str, Any] = super().__getstate__()
        return {**state, "_result": None} if "_result" in state else state

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "bundle_")


class FederatedClassifier(ClassifierMixin, _FederatedEstimator):  # type: ignore[misc]
    """A classifier trained by a federated method.

    Args:
        method: A method or its spec. Default: `auto`, which chooses the model of each client.
        model: The model's spec. Default: softmax regression.
        rounds: The rounds of training.
        epochs: The local epochs of a round.
        batch_size: The samples of a local step.
        lr: The learning rate.
        cohort: The clients that train in a round. Default: all.
        scale: Whether features are standardised by the means and deviations of all clients' rows.
        random_state: The seed; None draws one.
        device: Where to train: "auto", "cpu" or "cuda".

    Attributes:
        classes_: The classes.
        clients_: The names of the clients that were trained on, sorted.
        bundle_: Their models, and the common model.
        placed_: By name, the bundles of clients that were placed afterwards.

    Example:
        >>> import numpy as np
        >>> from coterie.sklearn import FederatedClassifier
        >>> X = np.random.default_rng(0).normal(size=(90, 3))
        >>> y, site = (X[:, 0] > 0).astype(int), np.repeat(["a", "b", "c"], 30)
        >>> model = FederatedClassifier("fedavg", rounds=5).fit(X, y, clients=site)
        >>> model.predict(X[:2], clients="a").shape
        (2,)
    """

    _task = "classification"

    def fit(self, X: Any, y: Any, clients: Any = None) -> "FederatedClassifier":
        """Train on the rows of all clients.

        Args:
            X: (n, features) numbers.
            y: (n,) classes.
            clients: (n,) the client of each row. Default: one client has them all.

        Returns:
            The fitted estimator.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self._encoder = LabelEncoder().fit(column_or_1d(y, warn=True))
        self.classes_ = self._encoder.classes_
        if len(self.classes_) < 2:
            raise ValueError(f"Only one class is present in y ({self.classes_[0]!r}): a classifier needs two or more.")
        self._fit(X, self._encode(y), self._class_names(), clients)
        return self

    def predict(self, X: Any, clients: Any = None) -> Any:
        """Predict the class of each row.

        Args:
            X: (n, features) the rows.
            clients: (n,) the client of each row, or one name for all. Default: the common model answers, as for unknown clients.

        Returns:
            (n,) classes; a Series with the rows' index where X is a data frame.
        """
        shares = self._compute_probabilities(X, clients)
        return _like_input(self.classes_[shares.argmax(axis=1)], X)

    def predict_proba(self, X: Any, clients: Any = None) -> Any:
        """(n, classes) the probability of each class; a data frame with the rows' index where X is one."""
        return _like_input(self._compute_probabilities(X, clients), X, self.classes_)

    def score(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> float:
        """Compute the accuracy on these rows."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, clients=clients), sample_weight=sample_weight))

    def _compute_probabilities(self, X: Any, clients: Any) -> Doubles:
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        found = np.zeros((len(rows), len(self.classes_)))
        for chosen, answer in self._answer(rows, clients):
            found[chosen] = answer.probabilities
        return found

    def _encode(self, y: Array) -> Array:
        unknown = sorted({*np.asarray(y).tolist()} - {*self.classes_.tolist()}, key=str)
        if unknown:
            raise UserError(f"There is no class {unknown[0]!r} among those of training: {', '.join(map(str, self.classes_))}.")
        return np.asarray(self._encoder.transform(y), dtype=np.int64)

    def _class_names(self) -> tuple[str, ...]:
        return tuple(f"{number} {name}" for number, name in enumerate(self.classes_.tolist()))  # 1 and "1" stay apart


class FederatedRegressor(RegressorMixin, _FederatedEstimator):  # type: ignore[misc]
    """A regression trained by a federated method. Arguments and attributes are those of `FederatedClassifier`, less the classes."""

    _task = "regression"

    def fit(self, X: Any, y: Any, clients: Any = None) -> "FederatedRegressor":
        """Train on the rows of all clients.

        Args:
            X: (n, features) numbers.
            y: (n,) targets.
            clients: (n,) the client of each row. Default: one client has them all.

        Returns:
            The fitted estimator.
        """
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        self._fit(X, self._encode(column_or_1d(y, warn=True)), self._class_names(), clients)
        return self

    def predict(self, X: Any, clients: Any = None) -> Any:
        """(n,) the target of each row in its own units; `clients` as of `FederatedClassifier.predict`."""
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        found = np.zeros(len(rows))
        for chosen, answer in self._answer(rows, clients):
            found[chosen] = answer.classes
        return _like_input(found, X)

    def score(self, X: Any, y: Any, clients: Any = None, sample_weight: Any = None) -> float:
        """Compute the coefficient of determination on these rows."""
        from sklearn.metrics import r2_score

        return float(r2_score(y, self.predict(X, clients=clients), sample_weight=sample_weight))

    def _encode(self, y: Array) -> Array:
        return np.asarray(y, dtype=np.float64)

    def _class_names(self) -> tuple[str, ...]:
        return ("target",)


def _name_clients(clients: Any, rows: int, default: str = ALL_ROWS) -> list[str]:
    """The client of each row, by name."""
    if clients is None or isinstance(clients, str):
        return [clients or default] * rows
    found = [str(each) for each in np.asarray(clients).ravel().tolist()]
    if len(found) != rows:
        raise ValueError(f"clients has {len(found)} entries for {rows} rows: name the client of each row.")
    return found


def _make_federation(x: Floats, y: Array, classes: tuple[str, ...], owners: list[str], task: str) -> Federation:
    """Clients in the order of their names, all rows for training."""
    settings = {"classes": classes} if task == "classification" else {}
    return Federation.from_arrays(x, y, owners, task=task, test=0.0, name="estimator", **settings)


def _add_common_client(federation: Federation) -> Federation:
    """The same with one client more, that takes no part and whose labels no method sees."""
    nothing = np.zeros(0, dtype=np.int64)
    return federation.replace(
        ids=(*federation.ids, COMMON),
        train=Parts.from_lists([*federation.train, np.zeros(1, dtype=np.int64)]),
        test=Parts.from_lists([*federation.test, nothing]),
        unseen=1,
        unlabelled=True,
    )


def _like_input(values: Array, X: Any, columns: Any = None) -> "Array | pd.Series[Any] | pd.DataFrame":
    """Values with the index of the rows, where they are a data frame."""
    if not hasattr(X, "iloc"):
        return values
    import pandas as pd

    return pd.Series(values, index=X.index) if values.ndim == 1 else pd.DataFrame(values, index=X.index, columns=columns)
