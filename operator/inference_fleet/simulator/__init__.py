"""A fleet in virtual time: what a scaling policy would have done to latency and money under given traffic.

Discrete events, pure, seeded. The truth that it simulates (`truth`) is not the planner's model of it. Nothing of the operator
imports this package but the command line.
"""
