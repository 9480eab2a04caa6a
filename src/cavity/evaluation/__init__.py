"""How good a posterior is: metrics, evidence, importance weights, comparison and selection."""
