"""A trial of a job that tunes its own buckets: its gain as it narrows."""

import plotly.graph_objects as go

from app.figures.style import ACCENT, LINE, framed
from sim.nouns.autotune import AutotuneProgress


def trial_figure(told: AutotuneProgress) -> go.Figure:
    """Each look's gain in percent of the step, with its interval, over the steps of the trial."""
    gains = [100 * look.gain for look in told.looks]
    figure = go.Figure()
    figure.add_scatter(
        mode="lines+markers",
        x=[look.steps for look in told.looks],
        y=gains,
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [100 * (look.high - look.gain) for look in told.looks],
            "arrayminus": [100 * (look.gain - look.low) for look in told.looks],
        },
        line={"color": ACCENT, "width": 1},
        marker={"color": ACCENT, "size": 8},
        hovertemplate="after %{x} steps: %{y:+.1f} %<extra></extra>",
    )
    if told.in_use_ns and told.best_ns is not None:
        figure.add_hline(
            y=100 * (told.in_use_ns - told.best_ns) / told.in_use_ns,
            line={"color": LINE, "dash": "dash"},
            annotation_text="predicted",
        )
    figure.add_hline(y=0, line={"color": LINE, "width": 1})
    figure.update_xaxes(title="steps of the trial", range=[0, 1.05 * (told.most_steps or 1)])
    figure.update_yaxes(title="gain, % of the step")
    return framed(figure, 260, showlegend=False)
