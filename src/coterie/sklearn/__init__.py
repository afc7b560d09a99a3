"""Federated estimators for scikit-learn: `FederatedClassifier` and `FederatedRegressor`."""

from coterie.sklearn.estimators import FederatedClassifier as FederatedClassifier
from coterie.sklearn.estimators import FederatedRegressor as FederatedRegressor
