"""reach_points.py TIMES POINT...: pass fault points again and again, and say how often."""

import sys

from dpwa import fault_points

times, *points = sys.argv[1:]
for number in range(1, int(times) + 1):
    for point in points:
        print(number, point, flush=True)
        fault_points.reached(point)
