//! Routing: find the matching routes, choose one, and where its address is LOCAL, locate the target service (R4).
//!
//! ```text
//!            ┌ table ─► find (seven steps) ─► choose (four classes) ─► locate ┐
//! decide ────┤                                                               ├──► Decision
//!            └ once more, as if from outside, where the next hop is this instance (R41)
//! ```
//! [`RouteIndex::resolve`] gives the same answers for blocks of conversations, and leaves what is not plain to `decide`.

mod batch;
mod compile;
mod decide;
mod expiry;
mod explain;
mod hosts;
mod index;
mod perfect_hash;
mod tie_break;

pub use batch::{Answers, BLOCK, Block, Stages};
pub use decide::{Candidates, Decision, NextHop, Outcome, Query, Reason};
pub use explain::{ClassSeen, Explanation, HostSeen, LocateSeen, Origin, Pass, RouteSeen, StepSeen, WhyNot};
pub use index::RouteIndex;
pub use tie_break::{Options, PendingRequest, TieBreak};
