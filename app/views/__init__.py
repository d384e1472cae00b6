"""The pages of the dashboard, a file each; not called ``pages``, which streamlit would take for scripts."""
