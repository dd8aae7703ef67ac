"""The estimators inside trainers of others. Each module needs its trainer and nothing imports them from here."""
