"""Run before a broker gets SIGTERM, so that it has a node to hand its group over to.

A broker that stops hands over by itself if another node is in sync. This waits until one is, at
most DRAIN_SECONDS. A group that is to have one node (GROUP_NODES) needs no wait.
"""

import json
import os
import subprocess
import time

group, node = os.environ["VQ_BROKER_GROUP"], os.environ["VQ_BROKER_NODE"]
deadline = time.monotonic() + float(os.environ["DRAIN_SECONDS"])
while int(os.environ["GROUP_NODES"]) > 1:
    try:
        told = subprocess.run(
            ["vq", "cluster", "status", "--json"], capture_output=True, timeout=20, check=False
        ).stdout
        others = [
            each
            for each in json.loads(told)
            if each["group"] == group and each["node"] != node and each["address"]  # it runs
        ]
        if any(each["in_sync"] for each in others):
            break
    except (ValueError, subprocess.TimeoutExpired):
        pass  # nobody answers; ask again
    if time.monotonic() >= deadline:
        break
    time.sleep(1)
