"""A first analysis: stateful cells in a sandbox, from loading data to a model and a plot.

Run by `make run`; by hand, against a server that runs: ``.venv/bin/python examples/first_analysis.py``. Everything
below `CELLS` happens inside the sandbox; this script only sends code and keeps what comes back, in ``examples/out/``.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent
from typing import Final

from cloche import NotFound, RunResult, Sandbox

NAME: Final = "first-analysis"
OUT: Final = Path(__file__).parent / "out"

CELLS: Final = (
    (
        "Load: 178 wines from three growers, as shipped with scikit-learn",
        """
        import pandas as pd
        from sklearn.datasets import load_wine

        bunch = load_wine(as_frame=True)
        wines = bunch.frame.assign(grower=bunch.frame.target.map({0: "A", 1: "B", 2: "C"})).drop(columns="target")
        wines.shape
        """,
    ),
    (
        "Clean and describe: `wines` is still there",
        """
        wines = wines.rename(columns={"od280/od315_of_diluted_wines": "protein_content"}).drop_duplicates()
        print(f"{wines.isna().sum().sum()} missing values, {len(wines)} wines left")
        wines[["alcohol", "color_intensity", "flavanoids", "proline"]].describe().round(2)
        """,
    ),
    (
        "Group: how the growers differ",
        """
        by_grower = wines.groupby("grower")[["alcohol", "color_intensity", "flavanoids", "proline"]].mean().round(2)
        by_grower.insert(0, "wines", wines.grower.value_counts().sort_index())
        by_grower
        """,
    ),
    (
        "Model: tell the grower from the chemistry, checked on wines it has not seen",
        """
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import cross_val_score
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        features = wines.drop(columns="grower")
        model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        scores = cross_val_score(model, features, wines.grower, cv=5)
        print(f"right in {scores.mean():.1%} of cases (5-fold: {scores.min():.1%} to {scores.max():.1%})")
        model.fit(features, wines.grower);
        """,
    ),
    (
        "Plot: the wines by their two most telling directions, and what the model looks at",
        """
        import matplotlib.pyplot as plt
        from sklearn.decomposition import PCA

        scaler, classifier = model[0], model[1]
        plane = PCA(n_components=2).fit(scaler.transform(features))
        points = plane.transform(scaler.transform(features))
        weights = pd.Series(abs(classifier.coef_).mean(axis=0), index=features.columns).sort_values().tail(8)

        figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
        for grower, colour in zip("ABC", ("#7b1e3b", "#c9973f", "#3d5a80")):
            chosen = points[(wines.grower == grower).to_numpy()]
            left.scatter(chosen[:, 0], chosen[:, 1], s=22, alpha=0.8, color=colour, label=f"grower {grower}")
        share = plane.explained_variance_ratio_.sum()
        left.set(title=f"{len(wines)} wines on a plane ({share:.0%} of the variance)")
        left.set(xlabel="component 1", ylabel="component 2")
        left.legend(frameon=False)
        right.barh(weights.index.str.replace("_", " "), weights, color="#3d5a80")
        right.set(title="What the model looks at", xlabel="mean absolute weight")
        for axes in (left, right):
            axes.spines[["top", "right"]].set_visible(False)
        plt.show()
        """,
    ),
    (
        "Still there: the names this kernel holds by now",
        """
        [name for name in ("wines", "by_grower", "model", "scores", "weights") if name in globals()]
        """,
    ),
)


def main() -> None:
    """Run the cells one after the other and keep the table and the plot."""
    sandbox = fresh_sandbox()
    print(f"Sandbox {sandbox.id} runs on {sandbox.info.driver} ({sandbox.info.isolation}).\n")
    for number, (title, code) in enumerate(CELLS, 1):
        print(f"[{number}] {title}")
        result = sandbox.run(dedent(code)).raise_for_error()
        print(indent(words_of(result), "    "))
        for path in result.save_images(OUT, prefix="wines"):
            say_saved(path)
        print()
    save_table(sandbox)
    print(f"\nThe sandbox is left running, with its variables. Go on:  cloche run -s {NAME} -c 'wines.sample(3)'")
    print(f"When you are done with it:  cloche rm {NAME}")
    sandbox.close()


def fresh_sandbox() -> Sandbox:
    """A new sandbox named `NAME`, in place of the one an earlier run of this script left."""
    try:
        with Sandbox.connect(NAME) as earlier:
            earlier.delete()
    except NotFound:
        pass
    return Sandbox.create(name=NAME)


def words_of(result: RunResult) -> str:
    """What the cell printed, then its value, as a notebook would show them."""
    took = f"({result.run.duration_s:.2f} s)" if result.run.duration_s is not None else ""
    return "\n".join(part for part in (result.stdout.rstrip(), result.text, took) if part)


def save_table(sandbox: Sandbox) -> None:
    """The table that the third cell made, as CSV and as HTML."""
    csv = sandbox.run("print(by_grower.to_csv(), end='')").raise_for_error().stdout
    html = sandbox.run("print(by_grower.to_html(border=0))").raise_for_error().stdout
    for name, content in (("growers.csv", csv), ("growers.html", html)):
        path = OUT / name
        path.write_text(content)
        say_saved(path)


def say_saved(path: Path) -> None:
    """Name a file as a reader would type it."""
    here = Path.cwd()
    print(f"    saved {path.relative_to(here) if path.is_relative_to(here) else path}")


if __name__ == "__main__":
    main()
