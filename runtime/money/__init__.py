"""Money: budget, meter, tariff."""
