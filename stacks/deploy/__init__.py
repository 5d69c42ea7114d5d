"""The command that deploys an experiment, and everything that it needs besides the CDK app.

Its modules other than `command` run by themselves, too: `cdk` is the pinned CDK command line, `lock` rewrites the
images' lock files.
"""
