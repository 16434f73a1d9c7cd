//! Routing: find the matching routes, choose one, and where its address is LOCAL, locate the target service (R4).
//!
//! ```text
//!            ┌ table ─► find (seven steps) ─► choose (four classes) ─► locate ┐
//! decide ────┤                                                               ├──► Decision
//!            └ once more, as if from outside, where the next hop is this instance (R41)
//! ```
//! [`RouteIndex::resolve`] gives the same answers for blocks of conversations, and leaves what is not plain to `decide`.

mod block;
mod choose;
mod compile;
mod decide;
mod explain;
mod find;
mod hosts;
mod index;
mod locate;
mod perfect;
mod pick;
mod resolve;
mod revise;
mod tail;
mod tell;

pub use block::{Answers, BLOCK, Block, Stages};
pub use choose::Candidates;
pub use decide::{Decision, NextHop, Query};
pub use explain::{ClassSeen, Explanation, HostSeen, LocateSeen, Origin, Pass, RouteSeen, StepSeen, WhyNot};
pub use index::RouteIndex;
pub use pick::{Options, PendingRequest, TieBreak};
