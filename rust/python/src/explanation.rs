//! Converts an explanation to the dictionary that `ssbroker.Explanation` reads.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use ssbroker_core::route::{ClassTrace, Explanation, HostTrace, LocateTrace, Origin, Pass, RouteRef, StepTrace};
use ssbroker_core::{
    AddressId, Catalog, Decision, Guid, NEVER, NONE, NextHop, PendingRequest, Query, RouteIndex, TieBreak,
};

use crate::errors::iso_time;

/// Builds the dictionary.
pub(crate) struct ExplanationBuilder<'a, 'py> {
    pub(crate) py: Python<'py>,
    pub(crate) index: &'a RouteIndex,
}

type Dict<'py> = Bound<'py, PyDict>;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn guid(id: Option<Guid>) -> Option<String> {
    id.map(|id| id.to_string())
}

impl<'py> ExplanationBuilder<'_, 'py> {
    pub(crate) fn build(&self, query: &Query<'_>, now: i64, explanation: &Explanation) -> PyResult<Dict<'py>> {
        let options = self.index.options();
        let conversation = PyDict::new(self.py);
        conversation.set_item("to_service_name", text(query.name))?;
        conversation.set_item("to_broker_instance", guid(query.broker))?;
        conversation.set_item("database", query.database.map(|database| self.database(database)))?;
        conversation.set_item("is_initiator", query.is_initiator)?;
        conversation.set_item("conversation_id", guid(query.conversation))?;
        let dict = PyDict::new(self.py);
        dict.set_item("conversation", conversation)?;
        dict.set_item("now", iso_time(self.py, now)?)?;
        let tie_break = match options.tie_break {
            TieBreak::First => "first",
            TieBreak::Hash => "hash",
            TieBreak::RoundRobin => "round_robin",
        };
        dict.set_item("tie_break", tie_break)?;
        let pending = if options.pending_request == PendingRequest::Delay { "delay" } else { "continue" };
        dict.set_item("pending_request", pending)?;
        dict.set_item("message_forwarding", self.catalog().settings().message_forwarding)?;
        dict.set_item("passes", self.list(&explanation.passes, |pass| self.pass(pass))?)?;
        dict.set_item("picks_undetermined", explanation.picks_undetermined)?;
        dict.set_item("decision", self.decision(&explanation.decision)?)?;
        Ok(dict)
    }

    fn catalog(&self) -> &Catalog {
        self.index.catalog()
    }

    fn database(&self, number: u16) -> String {
        text(&self.catalog().databases()[usize::from(number)].name)
    }

    fn databases(&self, numbers: &[u16]) -> Vec<String> {
        numbers.iter().map(|&number| self.database(number)).collect()
    }

    fn list<T>(&self, items: &[T], build: impl Fn(&T) -> PyResult<Dict<'py>>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(self.py, items.iter().map(build).collect::<PyResult<Vec<_>>>()?)
    }

    fn pass(&self, pass: &Pass) -> PyResult<Dict<'py>> {
        let dict = PyDict::new(self.py);
        dict.set_item("database", self.database(pass.database))?;
        let origin = match pass.origin {
            Origin::StartedHere => "begun_here",
            Origin::FromOutside => "from_outside",
            Origin::ReEntered => "re_entered",
        };
        dict.set_item("origin", origin)?;
        dict.set_item("sender_disabled", pass.sender_disabled)?;
        dict.set_item("id_enabled_in", pass.id_enabled_in.map(|database| self.database(database)))?;
        let reply = pass.reply.as_ref().map(|(databases, applies)| {
            let reply = PyDict::new(self.py);
            reply.set_item("databases", self.list(databases, |&host| self.host(host))?)?;
            reply.set_item("applies", applies)?;
            Ok::<_, PyErr>(reply)
        });
        dict.set_item("reply", reply.transpose()?)?;
        dict.set_item("route_count", pass.route_count)?;
        dict.set_item("expired_count", pass.expired_count)?;
        dict.set_item("steps", self.list(&pass.steps, |step| self.step(step))?)?;
        dict.set_item("classes", self.list(&pass.classes, |class| self.class(class))?)?;
        dict.set_item("locate", pass.locate.as_ref().map(|locate| self.locate(locate)).transpose()?)?;
        let next_hop = pass.next_hop.as_ref().map(|resolved| {
            let next_hop = PyDict::new(self.py);
            next_hop.set_item("address", self.next_hop(&resolved.next_hop))?;
            next_hop.set_item("is_this_instance", resolved.is_own)?;
            Ok::<_, PyErr>(next_hop)
        });
        dict.set_item("next_hop", next_hop.transpose()?)?;
        dict.set_item("result", pass.result)?;
        Ok(dict)
    }

    fn step(&self, step: &StepTrace) -> PyResult<Dict<'py>> {
        let dict = PyDict::new(self.py);
        dict.set_item("step", step.step)?;
        dict.set_item("rule", format!("R{}", 10 + step.step))?;
        dict.set_item("tried", step.tried)?;
        dict.set_item("note", step.note)?;
        dict.set_item("matched", self.list(&step.matched, |&route| self.route(route))?)?;
        let rejected = self.list(&step.rejected, |&(row, why)| self.with_reason(Some(row), why.label()))?;
        dict.set_item("rejected", rejected)?;
        dict.set_item("rejected_count", step.rejected_count)?;
        let candidates: Vec<String> = step.candidate_brokers.iter().map(ToString::to_string).collect();
        dict.set_item("candidate_broker_ids", candidates)?;
        dict.set_item("picked_broker_id", guid(step.picked_broker))?;
        dict.set_item("hosts", self.databases(&step.hosts))?;
        Ok(dict)
    }

    fn class(&self, class: &ClassTrace) -> PyResult<Dict<'py>> {
        let dict = PyDict::new(self.py);
        dict.set_item("class", class.class)?;
        dict.set_item("routes", self.list(&class.routes, |&route| self.route(route))?)?;
        let id_of = |route: &RouteRef| route.map(|row| self.catalog().routes()[row as usize].route_id);
        dict.set_item("usable", class.usable.iter().map(id_of).collect::<Vec<_>>())?;
        let unusable = self.list(&class.unusable, |&(route, why)| self.with_reason(route, why.label()))?;
        dict.set_item("unusable", unusable)?;
        dict.set_item("picked", class.picked.map(|route| self.route(route)).transpose()?)?;
        Ok(dict)
    }

    fn locate(&self, locate: &LocateTrace) -> PyResult<Dict<'py>> {
        let dict = PyDict::new(self.py);
        dict.set_item("rule", if locate.broker.is_some() { "R31" } else { "R32" })?;
        dict.set_item("broker_instance", guid(locate.broker))?;
        dict.set_item("databases", self.list(&locate.databases, |&host| self.host(host))?)?;
        dict.set_item("candidates", self.databases(&locate.candidates))?;
        dict.set_item("picked", locate.picked.map(|database| self.database(database)))?;
        Ok(dict)
    }

    fn host(&self, host: HostTrace) -> PyResult<Dict<'py>> {
        let database = &self.catalog().databases()[usize::from(host.database)];
        let dict = PyDict::new(self.py);
        dict.set_item("name", text(&database.name))?;
        dict.set_item("broker_instance", guid(database.broker))?;
        dict.set_item("is_broker_enabled", database.enabled)?;
        dict.set_item("has_service", host.has_service)?;
        dict.set_item("id_enabled_in", host.id_enabled_in.map(|database| self.database(database)))?;
        Ok(dict)
    }

    fn with_reason(&self, route: RouteRef, why: &str) -> PyResult<Dict<'py>> {
        let dict = PyDict::new(self.py);
        dict.set_item("route", self.route(route)?)?;
        dict.set_item("why", why)?;
        Ok(dict)
    }

    /// Converts a row of the catalog, or the implied LOCAL route of R16.
    fn route(&self, route: RouteRef) -> PyResult<Dict<'py>> {
        let catalog = self.catalog();
        let dict = PyDict::new(self.py);
        let row = route.map(|row| (row as usize, &catalog.routes()[row as usize]));
        dict.set_item("route_id", row.map(|(_, route)| route.route_id))?;
        dict.set_item("name", row.map(|(number, _)| text(catalog.route_name(number))))?;
        let service = row.and_then(|(_, route)| (route.service != NONE).then(|| text(catalog.name(route.service))));
        dict.set_item("remote_service_name", service)?;
        dict.set_item("broker_instance", guid(row.and_then(|(_, route)| route.broker)))?;
        let lifetime = row.map(|(_, route)| route.expires).filter(|&expires| expires != NEVER);
        dict.set_item("lifetime", lifetime.map(|expires| iso_time(self.py, expires)).transpose()?)?;
        dict.set_item(
            "address",
            row.map_or_else(|| "LOCAL".to_owned(), |(_, route)| text(catalog.address_text(route))),
        )?;
        dict.set_item("mirror_address", row.and_then(|(_, route)| catalog.mirror_text(route).map(text)))?;
        Ok(dict)
    }

    fn decision(&self, decision: &Decision) -> PyResult<Dict<'py>> {
        let address = |id: AddressId| text(self.index.address(id));
        let dict = PyDict::new(self.py);
        dict.set_item("outcome", decision.outcome.label())?;
        dict.set_item("match_step", decision.match_step)?;
        dict.set_item("route_id", decision.route_id)?;
        dict.set_item("next_hop_address", decision.next_hop.as_ref().map(|hop| self.next_hop(hop)))?;
        dict.set_item("mirror_address", decision.mirror.map(address))?;
        dict.set_item("target_database", decision.database.map(|database| self.database(database)))?;
        dict.set_item("broker_instance", guid(decision.broker))?;
        dict.set_item("reason", decision.reason.label())?;
        Ok(dict)
    }

    fn next_hop(&self, hop: &NextHop) -> String {
        match hop {
            NextHop::Known(address) => text(self.index.address(*address)),
            NextHop::Named(normal) => normal.clone(),
        }
    }
}
