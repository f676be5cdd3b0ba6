/* agent_state.h: the states of the agent and of its workers; agent_rules.h draws the moves. */
#ifndef AGENT_RULES_AGENT_STATE_H
#define AGENT_RULES_AGENT_STATE_H

/* The exit status of a job whose time was over: EX_TEMPFAIL of sysexits.h, "start it again". */
#define EXIT_TIME_LIMIT 75

enum node_state {
    NODE_INIT,         /* not joined yet */
    NODE_RENDEZVOUS,   /* joined, no worker alive, waiting for the nodes to be complete */
    NODE_STARTING,     /* complete: sockets and segment are made, then the workers */
    NODE_RUNNING,      /* all started; exits are counted */
    NODE_EXIT_BARRIER, /* every worker here exited with 0; waiting for the other nodes */
    NODE_STOPPING,     /* stop signal sent; SIGKILL after the grace; until no descendant is left */
    NODE_DONE,         /* the job is over for this node */
    NODE_STATES
};

enum worker_state {
    WORKER_IDLE,    /* not started in this round */
    WORKER_RUNNING, /* the worker's process is alive */
    WORKER_EXITING, /* the process is not reaped yet, but the failure is known */
    WORKER_EXITED,  /* the process is reaped; the pipes may still be read */
    WORKER_CLOSED,  /* everything that the worker wrote has been read, too */
};

#endif
