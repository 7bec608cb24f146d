"""The lag report as a program for ``spark-submit``; takes the options of ``vq report lag``.

spark-submit … spark/lag_report.py --zookeeper zk1:2181 --out hdfs:///vq/lag
python spark/lag_report.py --html lag.html          on this machine alone

docs/howto/spark.md says what goes for ``…``: how executors get vq.
"""

import sys

from vq.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["report", "lag", *sys.argv[1:]]))
