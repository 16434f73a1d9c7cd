//! The whole way of one conversation: what was seen at each step, and why it did not match.

use super::choose::Class;
use super::decide::{Decision, NextHop};
use super::find::Found;
use super::index::RouteIndex;
use crate::ids::Guid;
use crate::outcome::Reason;

/// Rejected routes that a step shows; the others it counts.
const REJECTED_SHOWN: usize = 20;

/// A decision, and how it came about.
#[derive(Debug)]
pub struct Explanation {
    /// The tables that were read, in order: one, or two after a re-entry (R41).
    pub passes: Vec<Pass>,
    /// The decision.
    pub decision: Decision,
    /// A tie was to be broken by the hash of a conversation id that was not given; the first candidate stands in.
    pub picks_undetermined: bool,
}

/// How a table came to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The conversation began in this database.
    BegunHere,
    /// It arrived from another instance.
    FromOutside,
    /// Its next hop was this instance (R41).
    ReEntered,
}

/// One reading of a routing table.
#[derive(Debug)]
pub struct Pass {
    /// The database whose table was read.
    pub database: u16,
    /// How it came to be read.
    pub origin: Origin,
    /// Delivery is disabled in the database where the conversation began (R34).
    pub sender_disabled: bool,
    /// Where it is: the other database in which its broker id is enabled (I7).
    pub id_enabled_in: Option<u16>,
    /// The databases that a reply was held against (R7), and whether it was one for this instance.
    pub reply: Option<(Vec<HostSeen>, bool)>,
    /// Routes of the table.
    pub route_count: usize,
    /// Those of them that are expired.
    pub expired_count: usize,
    /// The steps, up to the one that ended the search.
    pub steps: Vec<StepSeen>,
    /// The classes, up to the one that was chosen from.
    pub classes: Vec<ClassSeen>,
    /// Where the service was looked for.
    pub locate: Option<LocateSeen>,
    /// Where the message would go next, and whether that is this instance.
    pub next_hop: Option<(NextHop, bool)>,
    /// What came of it, in a word.
    pub result: &'static str,
}

/// A route as a step saw it: a row of the catalog, or the implied route of R16.
pub type RouteSeen = Option<u32>;

/// Why a route did not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// Its lifetime is over (R3).
    Expired,
    /// It names another broker id.
    OtherBrokerId,
    /// It names a broker id, where none was looked for.
    NamesBrokerId,
    /// The names are the same but for upper and lower case.
    NameDiffersInCase,
    /// The names are the same but for white space.
    NameDiffersInWhiteSpace,
    /// The names look the same, but are composed of other characters.
    NameDiffersInUnicodeForm,
    /// A request for the service is pending already (R14).
    PendingRequest,
    /// Another of several broker ids was picked (R13).
    NotThePickedId,
}

impl WhyNot {
    /// The label of the dictionary form.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::OtherBrokerId => "other_broker_id",
            Self::NamesBrokerId => "names_broker_id",
            Self::NameDiffersInCase => "name_differs_in_case",
            Self::NameDiffersInWhiteSpace => "name_differs_in_white_space",
            Self::NameDiffersInUnicodeForm => "name_differs_in_unicode_form",
            Self::PendingRequest => "pending_request",
            Self::NotThePickedId => "not_the_picked_id",
        }
    }
}

/// A step of *Find*.
#[derive(Debug, Default)]
pub struct StepSeen {
    /// Its number, 1 to 7; its rule is R11 to R17.
    pub step: i8,
    /// Whether its condition on the conversation holds.
    pub tried: bool,
    /// Why it was passed over, or what it found.
    pub note: &'static str,
    /// The live routes that it yields.
    pub matched: Vec<RouteSeen>,
    /// Routes that came close, and why they do not match.
    pub rejected: Vec<(u32, WhyNot)>,
    /// How many came close.
    pub rejected_count: usize,
    /// The broker ids to pick from (R13).
    pub candidate_brokers: Vec<Guid>,
    /// The one that was picked.
    pub picked_broker: Option<Guid>,
    /// The databases that have the service (R16).
    pub hosts: Vec<u16>,
}

/// A class of R22.
#[derive(Debug)]
pub struct ClassSeen {
    /// Its name.
    pub class: &'static str,
    /// Its routes; those with the same address count as one (R21).
    pub routes: Vec<RouteSeen>,
    /// Those that lead somewhere.
    pub usable: Vec<RouteSeen>,
    /// Those that do not, and why.
    pub unusable: Vec<(RouteSeen, Reason)>,
    /// The one that was chosen.
    pub picked: Option<RouteSeen>,
}

/// A database that was looked at.
#[derive(Clone, Copy, Debug)]
pub struct HostSeen {
    /// Its number.
    pub database: u16,
    /// Whether it has the service.
    pub has_service: bool,
    /// The other database in which its broker id is enabled, so that it cannot be enabled itself (I7).
    pub id_enabled_in: Option<u16>,
}

/// *Locate*.
#[derive(Debug)]
pub struct LocateSeen {
    /// The broker id by which the database is told (R31); `None` if any with the service will do (R32).
    pub broker: Option<Guid>,
    /// The databases that were looked at.
    pub databases: Vec<HostSeen>,
    /// Those that could take the message.
    pub candidates: Vec<u16>,
    /// The one that takes it.
    pub picked: Option<u16>,
}

impl Pass {
    pub(crate) fn has_tie(&self) -> bool {
        self.steps.iter().any(|step| step.picked_broker.is_some() && step.candidate_brokers.len() > 1)
            || self.classes.iter().any(|class| class.picked.is_some() && class.usable.len() > 1)
            || self.locate.as_ref().is_some_and(|locate| locate.picked.is_some() && locate.candidates.len() > 1)
    }
}

impl Class {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Mirror => "mirror",
            Self::Local => "local",
            Self::Network => "network",
            Self::Transport => "transport",
        }
    }
}

impl StepSeen {
    pub(crate) fn skip(&mut self, note: &'static str) {
        self.tried = false;
        self.note = note;
    }

    pub(crate) fn look(&mut self, rows: impl Iterator<Item = u32>, why_not: impl Fn(u32) -> Option<WhyNot>) {
        for row in rows {
            if let Some(why) = why_not(row) {
                self.reject(row, why);
            }
        }
    }

    fn reject(&mut self, row: u32, why: WhyNot) {
        self.rejected_count += 1;
        if self.rejected.len() < REJECTED_SHOWN {
            self.rejected.push((row, why));
        }
    }

    /// What the step came to, if it did not end the search.
    pub(crate) fn missed(&self) -> &'static str {
        match self.step {
            1 => "no live route has exactly this service name and this broker id",
            2 => "no live route has exactly this service name and no broker id",
            3 => "no live route has exactly this service name and a broker id",
            4 if self.rejected.iter().any(|&(_, why)| why == WhyNot::PendingRequest) => {
                "a request for this service is pending already"
            }
            4 => "there is no live route to the dynamic routing service",
            5 => "no live route leaves out both service name and broker id",
            6 => "no enabled database of the instance has a service of this name",
            _ => "no step yields a route",
        }
    }

    /// Completes the step that ended the search.
    pub(crate) fn finish(&mut self, index: &RouteIndex, found: Option<&Found>, now: i64) {
        self.note = match (self.step, found) {
            (4, _) => "routing information is requested from the dynamic routing service",
            (6, _) => "as if there were a LOCAL route: the instance has a service of this name",
            (7, _) => "no step yields a route",
            _ => "found",
        };
        match found {
            Some(Found::Routes { rows, broker, step }) => {
                self.picked_broker = broker.filter(|_| *step == 3);
                let rows = index.order[rows.clone()].iter().copied();
                self.matched = rows.filter(|&row| index.row(row).is_live(now)).map(Some).collect();
                if *step == 3 {
                    self.reject_other_ids(index, *broker);
                }
            }
            Some(Found::Implied { .. }) => self.matched = vec![None],
            _ => {}
        }
    }

    fn reject_other_ids(&mut self, index: &RouteIndex, picked: Option<Guid>) {
        let Some(&Some(first)) = self.matched.first() else { return };
        let first = *index.row(first);
        for row in 0..index.catalog.routes.len() as u32 {
            let route = index.row(row);
            let same = (route.database, route.service) == (first.database, first.service);
            if same
                && route.broker.is_some()
                && route.broker != picked
                && !self.rejected.iter().any(|&(other, _)| other == row)
            {
                self.reject(row, WhyNot::NotThePickedId);
            }
        }
    }
}
