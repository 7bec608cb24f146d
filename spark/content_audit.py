"""The audit of contents as a program for ``spark-submit``; options of ``vq report audit``.

spark-submit … spark/content_audit.py --zookeeper zk1:2181 --topic orders
python spark/content_audit.py --topic orders --html audit.html          on this machine alone

docs/howto/spark.md says what goes for ``…``: how executors get vq.
"""

import sys

from vq.cli.main import run

if __name__ == "__main__":
    sys.exit(run(["report", "audit", *sys.argv[1:]]))
