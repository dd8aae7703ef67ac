"""Numbers that the theory needs and torch alone does not give.

Worst cases by linear programming, laws of the ratio, pairs of stale policies, stale training of enumerable policies.
"""
