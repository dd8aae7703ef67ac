"""Numbers that the theory needs and torch alone does not give: worst cases by linear programming, ratio laws, stale training of enumerable policies."""
