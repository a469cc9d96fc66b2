"""A reconciler for agents that work in git worktrees: the parent branch moved on, and the agent's worktree has to follow.

    python examples/worktrees/reconciler.py WORKTREE < task.json           as a program (eventlog.recovery.reconciler.program)
    python examples/worktrees/reconciler.py --tell WORKTREE < task.json    a dirty worktree is left as it is, and its agent is told
    Deliveries(log, reconciler(Path("work/tree")))                         as a callable

`base` of the task is the commit of the parent branch. A clean worktree is fast-forwarded, or rebased where it has commits of its own. A
dirty one, or one in a rebase that is not ours, is not touched: its edits, untracked files included, are saved as a commit under
refs/eventlog/saved/ and the intent becomes RecoveryRequired (with `--tell`: the agent hears what came, and brings it in itself). So does
one whose commits do not go onto the base. Without common history it is TopologyDiverged. Run again, it finds what it did and says the
same; it may die anywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from eventlog.recovery.reconciler import Diverged, NeedsPerson, Reconciled, SyncTask

_COMMITS_MAX = 20  # in the payload; a hook's text has limits


class GitFailed(Exception):
    """A git command that had to work did not."""


def git(tree: Path, *args: str, env: Mapping[str, str] | None = None, check: bool = True) -> str:
    """One git command in a worktree, without a shell; its standard output, stripped. Raises GitFailed."""
    command = ["git", "-C", str(tree), "-c", "core.quotepath=off", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})})
    if done.returncode != 0 and check:
        raise GitFailed(f"git {' '.join(args)}: {done.stderr.strip()}")
    return done.stdout.strip() if done.returncode == 0 else ""


def reconciler(tree: Path, *, tell: bool = False) -> Callable[[SyncTask], Reconciled | NeedsPerson | Diverged]:
    """A reconciler for the worktree `tree`."""
    return lambda task: reconcile(tree, task, tell=tell)


def reconcile(tree: Path, task: SyncTask, *, tell: bool = False) -> Reconciled | NeedsPerson | Diverged:
    """Bring the worktree onto `task.base`, and say what that changed. Loses no edit and no commit."""
    mark = f"refs/eventlog/before/{task.intent.replace('#', '/')}"
    if not git(tree, "merge-base", "HEAD", task.base, check=False):
        return Diverged(f"{git(tree, 'rev-parse', '--short', 'HEAD')} and {task.base[:12]} have no common history")
    before = git(tree, "rev-parse", "--verify", "--quiet", mark, check=False)
    rebasing = in_rebase(tree)
    if rebasing and before:  # we died in the middle of it: nobody else could begin one since, all calls are blocked
        git(tree, "rebase", "--abort")
        rebasing = False
    if rebasing or git(tree, "status", "--porcelain"):
        if tell:
            here = git(tree, "rev-parse", "HEAD")
            return Reconciled(f"left alone {here}", here, describe(tree, here, task, came_in=False), f"commit:{here}")
        ref = save(tree, task.intent)
        return NeedsPerson("the worktree has edits that are not committed; they are untouched, and saved", ref)
    if not before:  # kept under a name: a second run, after a crash, must describe the same change
        before = git(tree, "rev-parse", "HEAD")
        git(tree, "update-ref", mark, before)
    how = "fast-forward"
    if not _is_ancestor(tree, task.base, "HEAD"):
        if _is_ancestor(tree, "HEAD", task.base):
            git(tree, "merge", "--ff-only", task.base)
        else:
            how = "rebase"
            try:
                git(tree, "rebase", task.base)
            except GitFailed as error:
                git(tree, "rebase", "--abort", check=False)
                ref = save(tree, task.intent)
                return NeedsPerson(f"its commits do not go onto {task.base[:12]}: {str(error).splitlines()[0]}", ref)
    elif not _is_ancestor(tree, before, "HEAD"):
        how = "rebase"
    after = git(tree, "rev-parse", "HEAD")
    return Reconciled(f"{how} {before}..{after}", after, describe(tree, before, task), f"commit:{after}")


def describe(tree: Path, before: str, task: SyncTask, *, came_in: bool = True) -> str:
    """What the agent is told: which commits came, which files they touch. The same commits give the same bytes."""
    common = git(tree, "merge-base", before, task.base)
    commits = git(tree, "log", "--format=%h %s", f"{common}..{task.base}").splitlines()
    shown = [f"  {line}" for line in commits[:_COMMITS_MAX]]
    if len(commits) > _COMMITS_MAX:
        shown.append(f"  and {len(commits) - _COMMITS_MAX} more")
    stat = git(tree, "diff", "--stat=100", common, task.base)
    many = "1 commit" if len(commits) == 1 else f"{len(commits)} commits"
    head = f"Your workspace changed: {many} of the parent branch came in. Read the files again before you edit them."
    if not came_in:
        todo = f"Your edits are not committed, so your files were left as they are: commit, then rebase onto {task.base}."
        head = f"The parent branch moved by {many}. {todo}"
    return "\n".join([head, *shown, stat])


def save(tree: Path, intent: str) -> str:
    """Save everything that the worktree holds, untracked files too, as a commit under a ref of its own; the ref. Touches no file of it."""
    with tempfile.TemporaryDirectory() as scratch:
        env = {
            "GIT_INDEX_FILE": str(Path(scratch, "index")),
            "GIT_AUTHOR_NAME": "eventlog",
            "GIT_AUTHOR_EMAIL": "eventlog@localhost",
            "GIT_COMMITTER_NAME": "eventlog",
            "GIT_COMMITTER_EMAIL": "eventlog@localhost",
        }
        git(tree, "read-tree", "HEAD", env=env)
        git(tree, "add", "--all", env=env)
        content = git(tree, "write-tree", env=env)
        commit = git(tree, "commit-tree", content, "-p", "HEAD", "-m", f"saved for {intent}", env=env)
    ref = f"refs/eventlog/saved/{intent.replace('#', '/')}/{commit[:12]}"
    git(tree, "update-ref", ref, commit)
    return ref


def in_rebase(tree: Path) -> bool:
    """Was a rebase begun in this worktree, and not ended?"""
    places = [git(tree, "rev-parse", "--git-path", name) for name in ("rebase-merge", "rebase-apply")]
    return any((tree / place).exists() for place in places)


def _is_ancestor(tree: Path, older: str, newer: str) -> bool:
    done = subprocess.run(["git", "-C", str(tree), "merge-base", "--is-ancestor", older, newer], check=False, capture_output=True)
    return done.returncode == 0


def main() -> int:
    """The same as a program: the task on standard input, the answer on standard output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tell", action="store_true")
    parser.add_argument("worktree", type=Path)
    arguments = parser.parse_args()
    given = json.load(sys.stdin)
    task = SyncTask(given["intent"], given["thread"], given["base"], tuple(given["triggers"]))
    result = reconcile(arguments.worktree, task, tell=arguments.tell)
    if isinstance(result, NeedsPerson):
        answer = {"recovery_required": result.reason, "copy": result.copy}
    elif isinstance(result, Diverged):
        answer = {"topology_diverged": result.reason}
    else:
        answer = {"operation": result.operation, "commit": result.commit, "payload": result.payload, "anchor": result.anchor}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
