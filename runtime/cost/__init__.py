"""The cost of a run: the price list, the model of the bill, and the budget."""
