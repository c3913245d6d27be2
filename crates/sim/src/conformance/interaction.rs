//! The commands of the interaction traces: members that are played by hand.

use bytes::Bytes;
use quorate_core::membership::Transition;
use quorate_core::{Change, Dropped, Input, MemberId, RequestId};

use super::algebra::operations;
use super::arrival;
use super::file::{Argument, TraceCommand, number};
use super::member::{PROPOSAL_DROPPED, TraceMember, Trim};
use super::message::TraceMessage;
use super::notation::{self, KINDS};
use super::world::{Recipient, TraceWorld};

#[derive(Default)]
pub(super) struct Interaction {
    world: TraceWorld,
    /// Replies are not matched to requests; any number will do.
    requests: u64,
}

/// Why a command ended early.
pub(super) enum TraceCommandError {
    /// The recorded system refuses too: the text is part of the trace, and not even
    /// silence keeps it back.
    Prints(String),
    /// The trace cannot be played.
    Stops(String),
}

impl From<String> for TraceCommandError {
    fn from(why: String) -> Self {
        Self::Stops(why)
    }
}

impl Interaction {
    pub(super) fn run(&mut self, command: &TraceCommand) -> Result<Vec<String>, String> {
        let was_silent = self.world.transcript.silent;
        let result = self.dispatch(command);
        if command.name == "stabilize" {
            self.world.transcript.silent = was_silent; // Its log-level is for itself alone.
        }
        let mut lines = self.world.transcript.take();
        match result {
            Ok(()) => {}
            Err(TraceCommandError::Prints(text)) => lines.push(text),
            Err(TraceCommandError::Stops(why)) => return Err(why),
        }
        if lines.is_empty() {
            lines.push("ok".to_owned());
        }
        Ok(lines)
    }

    fn dispatch(&mut self, command: &TraceCommand) -> Result<(), TraceCommandError> {
        // Its text is taken literally, not as arguments.
        if command.name == "propose" {
            return self.propose(&command.rest);
        }
        let arguments = command.arguments()?;
        match command.name.as_str() {
            "add-nodes" => arrival::add(&mut self.world, &arguments),
            "campaign" => self.step(&arguments, Input::Campaign),
            "forget-leader" => self.step(&arguments, Input::ForgetLeader),
            "tick-heartbeat" => Ok(self.world.member(one_id(&arguments)?)?.tick_heartbeat()?),
            "tick-election" => Ok(self.world.member(one_id(&arguments)?)?.tick_election()?),
            "set-randomized-election-timeout" => self.set_timeout(&arguments),
            "propose-conf-change" => self.propose_change(&arguments, &command.input),
            "transfer-leadership" => self.transfer(&arguments),
            "report-unreachable" => {
                let [member, peer] = two_ids(&arguments)?;
                self.input(member, Input::Unreachable(peer))
            }
            "process-ready" => {
                self.process(&arguments, "handling Ready", TraceWorld::process_ready)
            }
            "process-append-thread" => {
                self.process(&arguments, "processing append thread", TraceWorld::process_save)
            }
            "process-apply-thread" => {
                self.process(&arguments, "processing apply thread", TraceWorld::process_apply)
            }
            "deliver-msgs" => self.deliver(&arguments),
            "stabilize" => self.stabilize(&arguments),
            "compact" => self.compact(&arguments),
            "send-snapshot" => self.send_snapshot(&arguments),
            "raft-log" => {
                let lines = self.world.member(one_id(&arguments)?)?.log_lines();
                self.world.transcript.lines(&lines);
                Ok(())
            }
            "raft-state" => self.raft_state(&arguments),
            "status" => self.status(&arguments),
            "log-level" => self.log_level(bare(&arguments)?),
            other => Err(TraceCommandError::Stops(format!("unknown command `{other}`"))),
        }
    }

    /// Steps a member; what it drops without a word, it drops here too.
    fn input(&mut self, id: MemberId, input: Input) -> Result<(), TraceCommandError> {
        let _dropped = self.world.member(id)?.step(input)?;
        Ok(())
    }

    fn step(&mut self, arguments: &[Argument], input: Input) -> Result<(), TraceCommandError> {
        self.input(one_id(arguments)?, input)
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    fn propose(&mut self, rest: &str) -> Result<(), TraceCommandError> {
        let (id, text) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let (id, text) = (MemberId(number(id)?), text.trim());
        let request = self.request();
        let input = Input::Propose(request, Bytes::copy_from_slice(text.as_bytes()));
        proposed(self.world.member(id)?.step(input)?)
    }

    fn propose_change(
        &mut self,
        arguments: &[Argument],
        input: &[String],
    ) -> Result<(), TraceCommandError> {
        let (id, named) = id_and_named(arguments)?;
        let operations = operations(&input.join(" "))?;
        let (mut v1, mut way) = (false, Transition::Auto);
        for argument in named {
            match argument.key.as_str() {
                "v1" => v1 = argument.boolean()?,
                "transition" => way = transition(argument.value()?)?,
                _ => return Err(argument.unknown().into()),
            }
        }
        let change = match (v1, way, &operations[..]) {
            (false, _, _) => Change::new(operations).with_transition(way),
            (true, Transition::Auto, [operation]) => Change::v1(*operation),
            _ => {
                let text = "v1 conf change can only have one operation and no transition";
                return Err(TraceCommandError::Prints(text.to_owned()));
            }
        };
        let request = self.request();
        proposed(self.world.member(id)?.step(Input::Change(request, change))?)
    }

    fn set_timeout(&mut self, arguments: &[Argument]) -> Result<(), TraceCommandError> {
        let (id, named) = id_and_named(arguments)?;
        let [argument] = named else {
            return Err(TraceCommandError::Stops("expected the argument `timeout`".to_owned()));
        };
        if argument.key != "timeout" {
            return Err(argument.unknown().into());
        }
        match u32::try_from(argument.number()?) {
            Ok(ticks) if ticks > 0 => Ok(self.world.member(id)?.set_timeout_ticks(ticks)?),
            _ => Err(TraceCommandError::Stops("timeout is out of range".to_owned())),
        }
    }

    fn transfer(&mut self, arguments: &[Argument]) -> Result<(), TraceCommandError> {
        let (mut from, mut to) = (None, None);
        for argument in arguments {
            match argument.key.as_str() {
                "from" => from = Some(MemberId(argument.number()?)),
                "to" => to = Some(MemberId(argument.number()?)),
                _ => return Err(argument.unknown().into()),
            }
        }
        let (Some(from), Some(to)) = (from, to) else {
            return Err(TraceCommandError::Stops(
                "expected the arguments `from` and `to`".to_owned(),
            ));
        };
        self.world.member(to)?;
        self.input(from, Input::Transfer(to))
    }

    /// Does the same for each member; several are printed under titles.
    fn process(
        &mut self,
        arguments: &[Argument],
        title: &str,
        work: impl Fn(&mut TraceWorld, MemberId) -> Result<(), String>,
    ) -> Result<(), TraceCommandError> {
        let ids = ids(arguments)?;
        if let [id] = ids[..] {
            return Ok(work(&mut self.world, id)?);
        }
        for id in ids {
            self.world.under(&format!("> {} {title}", id.0), |world| work(world, id))?;
        }
        Ok(())
    }

    fn deliver(&mut self, arguments: &[Argument]) -> Result<(), TraceCommandError> {
        let mut recipients: Vec<Recipient> = Vec::new();
        let mut kind = None;
        for argument in arguments {
            match (argument.key.as_str(), &argument.values) {
                (id, None) => recipients.push(Recipient { id: MemberId(number(id)?), drop: false }),
                ("drop", Some(_)) => {
                    let ids = argument.numbers()?.into_iter().map(MemberId);
                    recipients.extend(ids.map(|id| Recipient { id, drop: true }));
                }
                ("type", Some(_)) => kind = Some(argument.value()?),
                _ => return Err(argument.unknown().into()),
            }
        }
        if let Some(kind) = kind.filter(|kind| !KINDS.contains(kind)) {
            return Err(TraceCommandError::Stops(format!("unknown message type `{kind}`")));
        }
        let mut any = false;
        for recipient in recipients {
            if !recipient.drop {
                self.world.member(recipient.id)?;
            }
            any |= self.world.deliver(recipient, kind)?;
        }
        if !any {
            self.world.transcript.line("no messages");
        }
        Ok(())
    }

    fn stabilize(&mut self, arguments: &[Argument]) -> Result<(), TraceCommandError> {
        let mut ids = Vec::new();
        for argument in arguments {
            match (argument.key.as_str(), &argument.values) {
                (id, None) => ids.push(MemberId(number(id)?)),
                ("log-level", Some(_)) => self.log_level(argument.value()?)?,
                _ => return Err(argument.unknown().into()),
            }
        }
        if ids.is_empty() {
            ids = self.world.ids();
        }
        Ok(self.world.stabilize(&ids)?)
    }

    fn compact(&mut self, arguments: &[Argument]) -> Result<(), TraceCommandError> {
        let [id, MemberId(index)] = two_ids(arguments)?;
        let member = self.world.member(id)?;
        match member.trim(index) {
            Ok(()) => {}
            Err(Trim::Trimmed) => {
                let text = "requested index is unavailable due to compaction";
                return Err(TraceCommandError::Prints(text.to_owned()));
            }
            Err(Trim::BeyondLog { last }) => {
                return Err(TraceCommandError::Stops(format!(
                    "cannot trim at {index}: log ends at {last}"
                )));
            }
            Err(Trim::Broken(why)) => return Err(TraceCommandError::Stops(why)),
            Err(Trim::Core(dropped)) => {
                return Err(TraceCommandError::Stops(format!(
                    "the core does not trim at {index}: {dropped}"
                )));
            }
        }
        let lines = member.log_lines();
        self.world.transcript.lines(&lines);
        Ok(())
    }

    fn send_snapshot(&mut self, arguments: &[Argument]) -> Result<(), TraceCommandError> {
        let [from, to] = two_ids(arguments)?;
        let parcel = TraceMessage::Message(self.world.member(from)?.snapshot_to(to)?);
        self.world.transcript.line(&parcel.line().to_string());
        self.world.post(parcel);
        Ok(())
    }

    fn raft_state(&mut self, arguments: &[Argument]) -> Result<(), TraceCommandError> {
        if let Some(argument) = arguments.first() {
            return Err(argument.unknown().into());
        }
        let statuses = self.world.members().iter().filter_map(TraceMember::status);
        let lines: Vec<String> = statuses.map(|status| notation::member(&status)).collect();
        self.world.transcript.lines(&lines);
        Ok(())
    }

    fn status(&mut self, arguments: &[Argument]) -> Result<(), TraceCommandError> {
        let status = self.world.member(one_id(arguments)?)?.status();
        let peers = status.into_iter().flat_map(|status| status.peers);
        let lines: Vec<String> = peers.map(|peer| notation::progress(&peer)).collect();
        self.world.transcript.lines(&lines);
        Ok(())
    }

    fn log_level(&mut self, level: &str) -> Result<(), TraceCommandError> {
        let level = level.to_ascii_lowercase();
        if !["debug", "info", "warn", "error", "fatal", "none"].contains(&level.as_str()) {
            return Err(TraceCommandError::Stops(format!("unknown log level `{level}`")));
        }
        self.world.transcript.silent = level == "none";
        Ok(())
    }
}

fn proposed(result: Result<(), Dropped>) -> Result<(), TraceCommandError> {
    match result {
        Err(Dropped::Refused(_)) => Err(TraceCommandError::Prints(PROPOSAL_DROPPED.to_owned())),
        _ => Ok(()),
    }
}

fn transition(text: &str) -> Result<Transition, String> {
    match text {
        "auto" => Ok(Transition::Auto),
        "implicit" => Ok(Transition::JointImplicit),
        "explicit" => Ok(Transition::JointExplicit),
        other => Err(format!("transition `{other}`, expected auto, implicit or explicit")),
    }
}

fn ids(arguments: &[Argument]) -> Result<Vec<MemberId>, String> {
    let id = |argument: &Argument| match argument.values {
        None => number(&argument.key).map(MemberId),
        Some(_) => Err(argument.unknown()),
    };
    arguments.iter().map(id).collect()
}

fn one_id(arguments: &[Argument]) -> Result<MemberId, String> {
    match ids(arguments)?[..] {
        [id] => Ok(id),
        _ => Err("expected one member id".to_owned()),
    }
}

fn two_ids(arguments: &[Argument]) -> Result<[MemberId; 2], String> {
    match ids(arguments)?[..] {
        [first, second] => Ok([first, second]),
        _ => Err("expected two numbers".to_owned()),
    }
}

fn id_and_named(arguments: &[Argument]) -> Result<(MemberId, &[Argument]), String> {
    let Some((first, named)) = arguments.split_first() else {
        return Err("expected a member id".to_owned());
    };
    Ok((one_id(std::slice::from_ref(first))?, named))
}

fn bare(arguments: &[Argument]) -> Result<&str, String> {
    match arguments {
        [Argument { key, values: None }] => Ok(key),
        _ => Err("expected one word".to_owned()),
    }
}
