"""Python imports this by itself where the folder is on its path: the job process of this site will lie."""

import sys

if any("worker_process" in word for word in sys.orig_argv):
    from deploy.lying import install

    install()
