"""A small study over two hospitals, for the tests of study files."""

import csv

import numpy as np

from cavity.study import parse_study

TRIAL = """\
name = "A trial"
id = "trial-1"
clients = ["leeds", "york"]

[model]
family = "logistic"
formula = "died ~ rx * age + sex"

[columns.died]
type = "boolean"

[columns.rx]
type = "category"
levels = ["placebo", "low", "high"]

[columns.age]
type = "number"
unit = "years"
range = [18, 110]
missing = "drop"

[columns.sex]
type = "category"
levels = ["f", "m"]
"""
FEDERATED = TRIAL.replace('id = "trial-1"', 'id = "trial-1"\nscaling = "federated"')  # the default
UNSCALED = TRIAL.replace('id = "trial-1"', 'id = "trial-1"\nscaling = "none"')


def trial(changes=()):
    text = TRIAL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return parse_study(text)


def patients(num_rows, seed):
    rng = np.random.default_rng(seed)
    age = rng.normal(60, 12, num_rows).clip(20, 100).round(1)
    rx = rng.choice(["placebo", "low", "high"], num_rows)
    sex = rng.choice(["f", "m"], num_rows)
    died = rng.random(num_rows) < 1 / (1 + np.exp(0.5 - (age - 60) / 12 + (rx == "high")))
    return {"died": died, "rx": rx, "age": age, "sex": sex}


def hospitals():
    return {"leeds": patients(120, 1), "york": patients(80, 2)}


def write_csv(path, columns):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def kl(mean, covariance, reference):
    """KL of a Gaussian from a reference, in nats."""
    other, difference = np.asarray(reference.covariance), mean - np.asarray(reference.mean)
    ratio = np.linalg.solve(other, covariance)
    twice = np.trace(ratio) - len(mean) - np.linalg.slogdet(ratio)[1] + difference @ np.linalg.solve(other, difference)
    return 0.5 * twice


def gap(posterior, reference):
    """The largest difference of means, in posterior standard deviations."""
    sd = np.sqrt(np.diag(np.asarray(reference.covariance)))
    return float(np.max(np.abs(np.asarray(posterior.mean - reference.mean)) / sd))
