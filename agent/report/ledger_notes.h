/* ledger_notes.h: what the ledger (--ledger) cannot see in other events: for how long this node's
 * workers waited in operations, and how old the checkpoint was when they stopped running. */
#ifndef AGENT_REPORT_LEDGER_NOTES_H
#define AGENT_REPORT_LEDGER_NOTES_H

#include "agent/base/feature.h"

extern const struct feature ledger_feature;

#endif
