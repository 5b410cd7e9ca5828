"""Makes the caches that a first import would make: matplotlib's font list, and what drawing one figure loads."""

import io

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt  # noqa: E402
import numpy  # noqa: E402, F401
import pandas  # noqa: E402, F401
import sklearn  # noqa: E402, F401

figure = plt.figure()
figure.gca().plot([1, 2])
figure.savefig(io.BytesIO())
