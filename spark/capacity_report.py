"""The capacity report as a program for ``spark-submit``; options of ``vq report capacity``.

spark-submit … spark/capacity_report.py --zookeeper zk1:2181 --out hdfs:///vq
python spark/capacity_report.py --html capacity.html          on this machine alone

docs/howto/spark.md says what goes for ``…``: how executors get vq.
"""

import sys

from vq.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["report", "capacity", *sys.argv[1:]]))
