"""What a run costs: the price list, the model of the bill, and the budget that it must stay within."""
