//! Traces of the membership algebra: which changes are possible and what they make
//! of a membership, without logs and messages.

use std::collections::BTreeMap;

use quorate_core::membership::{ChangeRefusal, Operation};
use quorate_core::{Index, MemberId, Membership};

use crate::short_ids::short_ids;

use super::file::{TraceCommand, number};

/// The membership so far, and from which index on each member would be sent entries.
#[derive(Default)]
pub(super) struct Algebra {
    membership: Membership,
    next: BTreeMap<MemberId, Index>,
    last_index: Index,
}

impl Algebra {
    pub(super) fn run(&mut self, command: &TraceCommand) -> Result<Vec<String>, String> {
        let printed = self.change(command);
        // Failed commands count too.
        self.last_index += 1;
        printed
    }

    fn change(&mut self, command: &TraceCommand) -> Result<Vec<String>, String> {
        let operations = operations(&command.input.join(" "))?;
        let mut auto_leave = false;
        for argument in command.arguments()? {
            match argument.key.as_str() {
                "autoleave" if command.name == "enter-joint" => auto_leave = argument.boolean()?,
                _ => return Err(argument.unknown()),
            }
        }
        let result = match command.name.as_str() {
            "simple" => self.membership.simple(&operations),
            "enter-joint" => self.membership.enter_joint(&operations, auto_leave),
            "leave-joint" if operations.is_empty() => self.membership.leave(),
            "leave-joint" => return Ok(vec!["this command takes no input".to_owned()]),
            other => return Err(format!("unknown command `{other}`")),
        };
        match result {
            Ok(membership) => {
                self.track(&operations, membership);
                Ok(self.lines())
            }
            Err(refusal) => Ok(vec![refusal_text(refusal)]),
        }
    }

    /// Follows the operations one by one: a member that is removed and added again starts
    /// over, but one that still votes in the outgoing majority is not forgotten.
    fn track(&mut self, operations: &[Operation], membership: Membership) {
        for operation in operations.iter().filter(|operation| operation.member().0 != 0) {
            match *operation {
                Operation::Voter(id) | Operation::Learner(id) => {
                    self.next.entry(id).or_insert(self.last_index.max(1));
                }
                Operation::Remove(id) => {
                    if !membership.outgoing().iter().any(|majority| majority.contains(id)) {
                        self.next.remove(&id);
                    }
                }
                Operation::Update(_) => {}
            }
        }
        self.next.retain(|id, _| membership.contains(*id));
        self.membership = membership;
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = vec![short_ids(&self.membership.to_string())];
        for (id, next) in &self.next {
            let learner = if self.membership.is_learner(*id) { " learner" } else { "" };
            lines.push(format!("{}: StateProbe match=0 next={next}{learner}", id.0));
        }
        lines
    }
}

/// Reads `v1 l2 r3 u4`.
pub(super) fn operations(text: &str) -> Result<Vec<Operation>, String> {
    text.split_whitespace().map(operation).collect()
}

fn operation(text: &str) -> Result<Operation, String> {
    let make = match text.chars().next() {
        Some('v') => Operation::Voter,
        Some('l') => Operation::Learner,
        Some('r') => Operation::Remove,
        Some('u') => Operation::Update,
        _ => return Err(format!("operation `{text}`, expected v, l, r or u and an id")),
    };
    Ok(make(MemberId(number(&text[1..])?)))
}

/// The recorded texts for our refusals. Those without one print as we name them.
fn refusal_text(refusal: ChangeRefusal) -> String {
    match refusal {
        ChangeRefusal::AlreadyJoint => "config is already joint".to_owned(),
        ChangeRefusal::NotJoint => "can't leave a non-joint config".to_owned(),
        ChangeRefusal::SimpleInJoint => {
            "can't apply simple config change in joint config".to_owned()
        }
        ChangeRefusal::ManyVoters => {
            "more than one voter changed without entering joint config".to_owned()
        }
        ChangeRefusal::NoVotersLeft => "removed all voters".to_owned(),
        ChangeRefusal::NoVotersForJoint => "can't make a zero-voter config joint".to_owned(),
        other => other.to_string(),
    }
}
