"""What it means: metrics, the critical path behind them, and how well prediction and measurement agree."""
