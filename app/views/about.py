"""The About page: what the figures mean, what the files are, where the model ends."""

import streamlit as st

from app.provenance import tool_version
from app.words import labels

_STEP = """
One step: forward, loss, backward, synchronisation, optimizer. A gradient is ready at a time that a
profile recorded. Its copy into the bucket occupies the compute lane; when all gradients of a bucket are
copied, and all earlier buckets are launched, its all-reduce is launched, and starts when a channel is
free. After backward, each bucket in order is waited for and copied back.
"""
_FILES = """
- **Workload**: the gradients of a model, and when backward makes each ready (`bucketsim record`).
- **Hardware**: how long a collective takes by its size, and the effects beside it (`bucketsim calibrate`).
- **Cluster**: hosts, their links, and the network; its Hardware is computed (`bucketsim cluster`).
- **Assignment**: which gradients share a bucket, and what to pass to DistributedDataParallel for it.
- **Record**: what real ranks did with a set of assignments (`bucketsim validate`).
"""
_LIMITS = """
- A measured run says something of its own workload on its own machine; scaled knobs leave it behind.
- A curve is a collective alone on its channel, back to back and warm.
- Where gain lies within the noise of the recorded iterations, the page says that it is not significant.
- This page reads files and computes. It never starts a rank or runs torch: `bucketsim validate` measures.
- It listens on this machine only, and sends no statistics.
"""


def show() -> None:
    """Draw the page."""
    st.title("About")
    st.write("How gradient buckets overlap backward, which assignment is best, and whether it is true.")
    st.subheader("What a figure means")
    for name, words in (
        ("Step time", "step"),
        ("Exposed communication", "exposed"),
        ("Overlap", "overlap"),
        ("Gain", "gain"),
    ):
        st.markdown(f"**{name}.** {labels.HELP[words]}")
    st.subheader("How time runs")
    st.markdown(_STEP)
    st.subheader("Files")
    st.markdown(_FILES)
    st.subheader("Limits")
    st.markdown(_LIMITS)
    st.caption(labels.plain(f"bucketsim {tool_version()}"))
