"""The policy file that a site begins with: every key with its default and what it means."""

import json
import re
from pathlib import Path
from typing import Any

DEFAULT_POLICY = """\
# What this site answers and what may leave it. The file is yours: no message of the server can change it.
# In words:  coterie policy explain .       After a change:  coterie policy check policy.toml

# The questions that are answered. Take out what your methods do not need: FedAvg needs Train (and Evaluate, to be judged).
# Where Train or Gradient may not leave, "SketchedTrain" and "SketchedGradient" let random projections of updates and gradients out.
asks = ["Train", "Gradient", "Losses", "Error", "Evaluate"]

# How many directions such sketches may show, in all runs together, and never more than half of the model's. Asked again with the same
# projection they show nothing new; a server that may ask with ever new ones could put the whole together.
sketch_numbers = 256

# The models and local rules that may run here. One that somebody else wrote is code that you run: it must be named, as
# "package.module:Class".
models = ["cnn", "densenet121", "lstm", "mclr", "mlp", "resnet18", "resnet50", "rnn"]
rules = ["Beside", "Contrast"]

# Asks that are stamped with a later round are not answered. (What a site gives away in one round this does not limit: 'privacy' does.)
maximum_rounds = 1000

# The longest training that one ask may want of a client.
maximum_epochs = 1000
maximum_steps = 100000

# How often one run may ask, and on how many different models a client is evaluated (Losses, Error, Evaluate): in one run, and in all runs
# on its data. 200 rounds of 10 methods with 5 seeds take 10,000 models for each part of the data that is evaluated.
asks_per_run = 100000
models_per_run = 50000
models_in_all = 500000

# A client that would answer from fewer samples than this is silent. An answer from one sample is nearly that sample.
minimum_samples = 10

# Losses, errors and counts of evaluations are rounded at random to what this many samples can change, and one sample's loss is cut.
# 1 tells them exactly; a method that compares losses (ifca, hypocluster) on clients of few samples may need that.
rounding = 3

# The largest ask or reply.
message_megabytes = 256.0

# Whether the server learns how many training samples a client has, exactly: they weigh it in averages. Without, each client counts as one
# sample, and evaluations are in hundredths.
sample_counts = true

# Whether evaluations are told class by class: that tells how many test samples of each class there are. Without, only accuracy, mean loss
# and AUROC are told.
class_counts = true

# Whether the server may ask about the samples of one class alone. Its answers tell how many training samples of each class there are.
label_shares = false

# Whether the server is told the text of an error, which might quote a value. Its kind is told in any case.
error_messages = true

[model_files]
# A model's spec from the server names no file, folder or address. What it may call by a name, and what that is here:
# glove = "/data/glove.npz"          # lstm(embeddings=glove)
# bert-tiny = "/models/bert-tiny"    # text(bert-tiny), where "text" is among the models

[approve]
# A new order (a run: methods, model, rounds, asks) is answered only after your yes: 'coterie join' shows it, and
# 'coterie policy approve KIT ORDER' says yes. Orders that this table lists are approved without asking you.
# Whether every order is.
any = false

# Or: orders of these methods alone, by name or whole spec; "inspect" is 'coterie inspect --federation'. Empty: none.
methods = []

# And of these models alone; empty: those of 'models' above.
models = []

# And of at most so many rounds, and so much epsilon of any client in all that it has answered.
# maximum_rounds = 100
# maximum_epsilon = 4.0

[privacy]
# "none": models and gradients leave as they are, other numbers rounded.
mechanism = "none"

# Or: a client's whole update (the trained model less the one received) is cut to the length `clip`, and every number gets
# Gaussian noise of deviation noise * clip. Gradients, losses, errors and evaluations are noised alike, and each answer is charged; numbers
# of samples and steps, and counts by class, do not leave.
# mechanism = "clip+noise"
# clip = 1.0
# noise = 0.5
# delta = 1e-5
# epsilon_limit = 8.0        # may be left out: then epsilon is counted but not limited

# Or: every training sample is protected in every step of training (DP-SGD). Only Train, and Evaluate on test parts, are answered.
# Evaluations are noised by the same noise_multiplier, and charged to a budget of the test samples' own, unless protect_tests is false.
# mechanism = "dp-sgd"
# noise_multiplier = 1.0
# max_grad_norm = 1.0
# delta = 1e-5
# epsilon_limit = 8.0
# protect_tests = true
"""


def approve_orders(path: Path, **table: Any) -> None:
    """Change the [approve] table of a policy file, key by key; a key that is not there, or is commented out, is added.

    Args:
        path: A policy file with an [approve] table, such as a kit's.
        table: Keys and values of the table.
    """
    head, mark, rest = path.read_text(encoding="utf-8").partition("[approve]\n")
    own, next_, tail = rest.partition("\n[")
    for name, value in table.items():
        line = f"{name} = {json.dumps(value)}"
        own, changed = re.subn(rf"(?m)^(# )?{name} = .*$", lambda found, line=line: line, own, count=1)  # type: ignore[misc]
        own += "" if changed else f"{line}\n"
    path.write_text(head + mark + own + next_ + tail, encoding="utf-8")
