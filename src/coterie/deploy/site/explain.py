"""Policies and orders in words: what may leave the site, what the server learns, what is guaranteed and what is refused."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from coterie.deploy.files import escape_text
from coterie.deploy.orders import ASKS, LONGEST_NOTE, SHORT_HASH, TABLE_ASKS, AskName, OrderTerms
from coterie.deploy.site.ledger import Charge, Ledger
from coterie.deploy.site.policy import OWN_MODELS, OWN_RULES, SKETCHED, ClipNoise, DpSgd, NoPrivacy, Policy

PRIVATE_ASKS = ("Train", "Evaluate", "SketchedTrain", *TABLE_ASKS)  # that are answered under dp-sgd


@dataclass(frozen=True)
class PolicySection:
    """One heading and its sentences."""

    heading: str
    lines: tuple[str, ...]


def explain_policy(policy: Policy, ledger: Ledger | None = None, numbers: str = "as many numbers as the model has") -> list[PolicySection]:
    """A policy in words. `numbers` is the length of a model, where that is known."""
    details = {name: tuple(describe_disclosure(name, policy, numbers)) for name in (*ASKS, *SKETCHED, *TABLE_ASKS) if name in policy.asks}
    private = policy.privacy
    allowed = [name for name in details if not isinstance(private, DpSgd) or name in PRIVATE_ASKS]
    return [
        *(PolicySection(f"{name} is answered", details[name]) for name in allowed),
        PolicySection("The server also learns", tuple(_describe_always(policy))),
        PolicySection("Privacy", tuple(_describe_guarantee(private))),
        PolicySection("Spent so far", tuple(_describe_spending(private, ledger.charges() if ledger else {}, ledger))),
        PolicySection("Refused", tuple(_describe_refusals(policy, allowed))),
    ]


def describe_disclosure(name: AskName, policy: Policy, numbers: str) -> Iterator[str]:
    """What leaves with an answer, and what a server that thinks about it could learn."""
    noised = isinstance(policy.privacy, ClipNoise)
    count = " and its number of samples" if policy.discloses_sizes else ", without its number of samples"
    rounded = policy.rounding > 1 and not noised
    how = ", noised and charged" if noised else f", rounded to what {policy.rounding} samples can change" if rounded else ", exactly"
    match name:
        case "Train":
            yield f"Leaves: the trained model of each client ({numbers}){count}{' and steps' if policy.discloses_sizes else ''}."
            if not isinstance(policy.privacy, DpSgd) and {"LossRule", "MixtureRule"} & set(policy.rules):
                by_class = ", also by class: how many training samples of each there are" if policy.label_shares else ""
                yield f"A local rule may add losses of its steps (LossRule) and mean responsibilities (MixtureRule){by_class}{how}."
            if isinstance(policy.privacy, DpSgd):
                yield "An honest-but-curious server learns little of any one training sample: each step of the training is noised."
            elif noised:
                yield "An honest-but-curious server sees the update through noise: the more rounds it sees, the more clearly."
            else:
                yield "An honest-but-curious server may learn from the update whether a known sample was trained on, in which shares"
                yield "classes are here (exactly, after one step on all samples) and, after few steps on few samples, how they look."
        case "Gradient":
            yield f"Leaves: each client's mean gradient ({numbers}), its mean loss{count}."
            if noised:
                yield "Gradient and loss are clipped together and noised, like an update."
            else:
                yield "An honest-but-curious server may rebuild samples from the gradient of few of them, and read off label proportions."
        case "SketchedTrain" | "SketchedGradient":
            what = "update" if name == "SketchedTrain" else "mean gradient"
            yield f"Leaves: in place of each client's {what}, a few random projections of it{count}."
            yield f"In all runs together they show {policy.sketch_numbers} directions at most, of {numbers} ('sketch_numbers')."
            if noised:
                yield "They are clipped and noised, like an update: in fewer numbers there is less noise."
            else:
                yield "An honest-but-curious server cannot undo the projection, but still learns which clients are alike and, from clients"
                yield "whose labels it knows, to guess at label proportions (docs/explanation/leaks.md has by how much)."
        case "Losses":
            yield f"Leaves: each client's mean loss under every model sent{how}{count}."
            yield "An honest-but-curious server may learn which model suits the client."
            if not noised:
                yield f"A curious server that makes models up may ask {policy.models_per_run:,} yes-or-no questions a run about the data."
        case "AskErrors":
            yield f"Leaves: how wrong every model sent is on the client's training part{how}{count}."
            yield "An honest-but-curious server learns as from Losses."
        case "Describe":
            by_class = ", and of each class with enough samples" if policy.label_shares and not noised else ""
            features = f"means and deviations of the features before the model's last layer{by_class}{', noised' * noised}"
            yield f"Leaves: of each client, {features}{count}."
            yield "Of a softmax regression, or of a model that the server makes up, these are means of the samples themselves."
        case "AskSubspaces":
            by_class = " of each class with enough samples" if policy.label_shares else ""
            yield f"Leaves: of each client, the main directions of its samples{by_class}{count}."
            yield "Of images these are images: the first looks like their mean."
        case "DescribeTable":
            more = "" if not isinstance(policy.privacy, NoPrivacy) else ", rounded ranges, words of enough rows, rounded counts"
            yield f"Leaves: names, types and units of the table's columns{more}."
        case "CheckTable":
            more = ", and of what does not fit rounded counts of rows" if isinstance(policy.privacy, NoPrivacy) else ""
            yield f"Leaves: which columns the table lacks of the agreed schema{more}."
        case "SummarizeTable":
            noise = "" if isinstance(policy.privacy, NoPrivacy) else ", noised and charged"
            yield f"Leaves: of each column of the agreed schema counts, mean, variance, histogram and gaps{noise}."
            yield f"Nothing of columns, words or bins with fewer than {policy.minimum_samples} rows."
        case "CountTimes":
            noise = "" if isinstance(policy.privacy, NoPrivacy) else ", noised and charged"
            yield f"Leaves: of survival times, each client's training samples by interval, with and without the event{noise}."
            yield f"A count below {policy.minimum_samples} is combined with the interval beside it; one grid a run."
        case "Evaluate":
            details = "right answers, predictions and samples by class" if policy.discloses_classes else "accuracy"
            exact = "" if policy.discloses_sizes else " in hundredths"
            private = isinstance(policy.privacy, DpSgd)
            parts = "test part" if private else "train, validation or test part"
            if private and policy.protects_tests:
                yield f"Leaves: of each client's {parts}, {details}{exact} and the mean loss, noised and charged to a budget of their own."
                return
            yield f"Leaves: of each client's {parts}, {details}{exact}, the mean loss and (of two classes) the AUROC{how}."
            if policy.discloses_classes:
                parts = "training and test" if policy.label_shares else "test"
                near = f", to {policy.rounding} or so" if rounded else ""
                yield f"An honest-but-curious server learns how many {parts} samples of each class there are{near}."
            if private:
                yield "Test samples are not protected by dp-sgd here ('protect_tests'): it is about training samples."


def _describe_always(policy: Policy) -> Iterator[str]:
    yield "Which clients are asked and answer, and how long it takes."
    least = policy.minimum_samples
    if least > 1:
        yield f"Nothing of clients that would answer from fewer than {least} samples, but that they are silent."
    if policy.aggregate:
        yield "One answer for all clients of the site: means and sums, not which clients there are ('aggregate')."
    if policy.small_clients == "merge":
        yield "Clients that are merged as one: none that has fewer samples ('small_clients')."
    if policy.label_shares:
        yield "How many training samples of each class a client has: it may ask about one class alone ('label_shares')."
    if policy.discloses_errors:
        yield "The text of errors, which might quote a value ('error_messages')."


def _describe_guarantee(privacy: NoPrivacy | ClipNoise | DpSgd) -> Iterator[str]:
    if isinstance(privacy, NoPrivacy):
        yield "No mechanism: models and gradients leave as they are. Data do not leave, but see above what can be learned from answers."
        return
    yield f"What is protected: {privacy.unit}."
    if isinstance(privacy, ClipNoise):
        deviation = f"{privacy.noise * privacy.clip:g}"
        yield f"Updates and gradients are cut to a length of {privacy.clip:g}; each number gets noise of deviation {deviation}."
        yield "Losses, errors and evaluations get noise as loud for their range, and each answer is charged as an update is."
        yield "Numbers of samples and steps and counts by class do not leave."
    else:
        times = f"{privacy.noise_multiplier:g}"
        yield f"Every sample's gradient is cut to {privacy.max_grad_norm:g}; every step gets noise of deviation {times} times that."
        yield "Whether a sample was there changes the chance of anything the server sees by a factor of e^epsilon at most (and delta)."
        yield "The number of samples is taken as known."
        if not privacy.protect_tests:
            yield "Evaluations of test parts are not noised ('protect_tests')."
    limit = f"at most {privacy.epsilon_limit:g}" if privacy.epsilon_limit is not None else "counted but not limited"
    yield f"Epsilon at delta {privacy.delta:g}, over all rounds and runs together: {limit}."


def _describe_spending(privacy: NoPrivacy | ClipNoise | DpSgd, book: Mapping[str, list[Charge]], ledger: Ledger | None) -> Iterator[str]:
    if not book or ledger is None:
        yield "Nothing yet."
        return
    if not isinstance(privacy, NoPrivacy):
        for client, epsilon in sorted(ledger.spent(privacy).items()):
            yield f"{client}: epsilon {epsilon:.3g} at delta {privacy.delta:g}."
    exact = sum(c.steps for charges in book.values() for c in charges if c.mechanism == "exact")
    if exact:
        yield f"{exact} answers from training samples left without noise; no epsilon covers them."


def _describe_refusals(policy: Policy, allowed: list[AskName]) -> Iterator[str]:
    refused = [name for name in (*ASKS, *TABLE_ASKS) if name not in allowed]
    if refused:
        yield f"The asks {', '.join(refused)}."
    if not policy.label_shares:
        yield "Questions about the samples of one class."
    if isinstance(policy.privacy, DpSgd):
        yield "Training on shares or by local rules, evaluations of train and validation parts, and training that would pass the limit."
    yield f"Rounds after {policy.maximum_rounds}; asks and replies above {policy.message_megabytes:g} MB."
    yield f"More than {policy.maximum_epochs:,} epochs or {policy.maximum_steps:,} steps in one ask; {policy.asks_per_run:,} asks of a run."
    yield f"Evaluations of a client on more than {policy.models_per_run:,} models in a run, {policy.models_in_all:,} in all."
    names = f" but what 'model_files' names: {', '.join(policy.model_files)}" if policy.model_files else ""
    yield f"Models that name a file, folder or address{names}."
    yield f"Models but {', '.join(policy.models) or 'none'}{_list_foreign(policy.models, OWN_MODELS)}."
    yield f"Local rules but {', '.join(policy.rules) or 'none'}{_list_foreign(policy.rules, OWN_RULES)}."


def _list_foreign(names: tuple[str, ...], own: tuple[str, ...]) -> str:
    foreign = [name for name in names if name not in own]
    return f" ({', '.join(foreign)} is not Coterie's: its code runs here with the site's rights)" if foreign else ""


def describe_order(terms: OrderTerms, policy: "Policy", epsilon: float | None) -> list[tuple[str, str]]:
    """Describe an order in words, for the operator that approves it: pairs of a heading and a line."""
    lines = [("operator", escape_text(terms.operator) or "no name given")]
    if terms.purpose:
        lines.append(("purpose", escape_text(terms.purpose, LONGEST_NOTE)))
    lines += [
        ("methods", escape_text(", ".join(terms.methods), LONGEST_NOTE)),
        *([("model", escape_text(terms.model))] if terms.facts.has_model else []),
    ]
    lines.append(("rounds", _describe_rounds(terms)))
    private = isinstance(policy.privacy, DpSgd)
    answered = [name for name in (*ASKS, *TABLE_ASKS) if name in policy.asks and (not private or name in PRIVATE_ASKS)]
    allowed = [name for name in answered if name in terms.asks]
    lines.append(("asks", ", ".join(terms.asks)))
    for name in allowed:
        first = next(describe_disclosure(name, policy, "as many numbers as the model has"))
        lines.append(("leaves", f"{name}: {first.removeprefix('Leaves: ')}"))
    if refused := [name for name in terms.asks if name not in allowed]:
        lines.append(("refused", f"{', '.join(refused)}: the policy does not answer {'it' if len(refused) == 1 else 'them'}"))
    lines.append(("privacy", _describe_privacy(policy, epsilon)))
    return lines


def _describe_rounds(terms: OrderTerms) -> str:
    if not terms.facts.has_rounds:
        return terms.facts.rounds + (", with a pilot training" if terms.local else "")
    if not terms.facts.trains:
        return _describe_looks(terms)
    seeds = f"{len(terms.seeds)} seed{'s' * (len(terms.seeds) > 1)}"
    cohort = terms.plan.get("cohort")
    cohorts = f"{cohort} clients a round" if cohort else "all clients in every round"
    epochs, batch = terms.local["epochs"], terms.local.get("batch_size")
    return f"{terms.rounds}, with {seeds}; {cohorts}; {epochs} local epoch{'s' * (epochs > 1)}, batches of {batch or 'all samples'}"


def _describe_looks(terms: OrderTerms) -> str:
    """Of an order that evaluates a bundle: how often, and which."""
    bundle, every = terms.plan.get("bundle"), terms.plan.get("every")
    often = f", every {every:,.0f} s" if isinstance(every, (int, float)) and not isinstance(every, bool) and every > 0 else ""
    return f"{terms.rounds} evaluation{'s' * (terms.rounds > 1)}{often}; no training; bundle {escape_text(str(bundle)[:SHORT_HASH])}"


def _describe_privacy(policy: "Policy", epsilon: float | None) -> str:
    privacy = policy.privacy
    if isinstance(privacy, NoPrivacy) or epsilon is None:
        return "no mechanism: answers leave as they are, and no epsilon bounds what they reveal"
    limit = f"the policy's limit is {privacy.epsilon_limit:g}" if privacy.epsilon_limit is not None else "the policy sets no limit"
    return f"{privacy.mechanism}: epsilon of a client at most about {epsilon:.3g} after this order (delta {privacy.delta:g}); {limit}"
