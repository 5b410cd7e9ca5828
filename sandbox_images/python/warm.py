"""Makes the caches that a first import would make: matplotlib's font list, and what drawing one figure loads."""

import io

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy  # noqa: F401
import pandas  # noqa: F401
import sklearn  # noqa: F401

figure = plt.figure()
figure.gca().plot([1, 2])
figure.savefig(io.BytesIO())
