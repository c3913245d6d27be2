//! The work of a member's disk and state machine: threads in a real member, events here.

use std::error::Error;

use bytes::Bytes;
use quorate::driver::{MachineJob, MachineJobDone};
use quorate_core::message::Message;
use quorate_core::{Envelope, Index, RequestId, SnapshotMeta};
use quorate_storage::{Store, StoreError};

use super::machine::RanCommand;
use super::member::DiskWork;
use super::simulation::{SimEvent, Simulation};
use super::versions::needed_version;
use crate::checkers::{Checked, Violation};
use crate::faulty_disk::SharedDisk;

impl Simulation {
    /// Starts all queued disk work, if the disk is idle.
    pub(super) fn begin_disk(&mut self, place: usize) -> Checked {
        let member = &mut self.members[place];
        let Some(process) = &mut member.process else { return Ok(()) };
        if process.disk_busy || process.disk_waits.is_empty() {
            return Ok(());
        }
        process.disk_busy = true;
        process.disk_does = std::mem::take(&mut process.disk_waits);
        let saves = process.disk_does.iter().filter_map(|work| match work {
            DiskWork::Save(save) => Some(save),
            _ => None,
        });
        let mut written = Ok(());
        for save in saves {
            written = process.store.write(save);
            if written.is_err() {
                break;
            }
        }
        if let Err(why) = written {
            return self.end(place, &why.to_string());
        }
        let time = self.now + 1 + member.random.below(member.disk_delay);
        let run = member.run;
        self.schedule(time, SimEvent::DiskDone { place, run });
        Ok(())
    }

    pub(super) fn on_disk_done(&mut self, place: usize, run: u64) -> Checked {
        if self.members[place].run != run {
            return Ok(());
        }
        let Some(process) = &mut self.members[place].process else { return Ok(()) };
        self.report.events += 1;
        process.disk_busy = false;
        let done = std::mem::take(&mut process.disk_does);
        let must_sync = done.iter().any(|work| match work {
            DiskWork::Save(save) => save.must_sync || save.install.is_some(),
            _ => false,
        });
        if must_sync && let Err(why) = process.store.sync() {
            return self.end(place, &why.to_string());
        }
        for work in done {
            if let Err(why) = self.finish_disk_work(place, work, must_sync)? {
                return self.end(place, &why);
            }
        }
        self.pump(place)
    }

    /// The inner error is a failure of the disk.
    fn finish_disk_work(
        &mut self,
        place: usize,
        work: DiskWork,
        synced: bool,
    ) -> Result<Result<(), String>, Violation> {
        let id = self.members[place].id;
        let Some(process) = &mut self.members[place].process else { return Ok(Ok(())) };
        let store = &mut process.store;
        let done = match work {
            DiskWork::Save(save) => {
                self.invariants.saved(id, &save, synced)?;
                process.driver.saved(save.id);
                Ok(())
            }
            DiskWork::Load(load) => {
                let entries = store.load(load.range.clone(), load.bytes_max);
                let entries = entries.map_err(|why| why.to_string());
                entries.map(|entries| process.driver.loaded(load.target, entries))
            }
            DiskWork::Trim(index) => store.trim(index).map_err(|why| why.to_string()),
            DiskWork::Capture(meta, chunks) => {
                let index = meta.id.index;
                let saved = write_snapshot(store, meta, &chunks).map_err(|why| why.to_string());
                let bytes = chunks.iter().map(|chunk| chunk.len() as u64).sum();
                saved.map(|()| process.driver.snapshot_saved(index, bytes))
            }
            DiskWork::ReceiveTorn(meta, chunks) => {
                write_part_of_snapshot(store, meta, &chunks).map_err(|why| why.to_string())
            }
            DiskWork::Receive(envelope, meta, chunks) => {
                let saved = write_snapshot(store, meta, &chunks).map_err(|why| why.to_string());
                saved.map(|()| {
                    process.driver.receive(envelope);
                })
            }
        };
        Ok(done)
    }

    pub(super) fn begin_machine(&mut self, place: usize) {
        let delay = self.setting.apply_delay;
        let member = &mut self.members[place];
        let Some(process) = &mut member.process else { return };
        if process.machine_busy || process.jobs.is_empty() {
            return;
        }
        process.machine_busy = true;
        let time = self.now + 1 + member.random.below(delay);
        let run = member.run;
        self.schedule(time, SimEvent::MachineDone { place, run });
    }

    pub(super) fn on_machine_done(&mut self, place: usize, run: u64) -> Checked {
        if self.members[place].run != run {
            return Ok(());
        }
        let Some(process) = &mut self.members[place].process else { return Ok(()) };
        self.report.events += 1;
        process.machine_busy = false;
        let jobs = std::mem::take(&mut process.jobs);
        let mut installed = None;
        for job in jobs {
            if let MachineJob::Install(meta) = &job {
                installed = Some(meta.clone());
            }
            if let Err(why) = self.do_job(place, job)? {
                return match needed_version(why.as_ref()) {
                    Some(needs) => self.needs_newer_program(place, needs),
                    None => self.end(place, &why.to_string()),
                };
            }
        }
        self.pump(place)?;
        installed.map_or(Ok(()), |meta| self.check_no_client_waits(place, &meta))
    }

    /// No client still waits for a request that an installed snapshot contains (L5).
    fn check_no_client_waits(&self, place: usize, meta: &SnapshotMeta) -> Checked {
        let member = &self.members[place];
        let waits = self.clients.waits_for((place, member.run), meta.id.index);
        match waits.filter(|_| meta.membership.contains(member.id)) {
            None => Ok(()),
            Some(number) => {
                let (id, snapshot) = (member.id, meta.id);
                let message =
                    format!("{id} installed {snapshot}, but request {number} still waits");
                Err(Violation::new("L5", message))
            }
        }
    }

    /// The inner error ends the member.
    fn do_job(&mut self, place: usize, job: MachineJob) -> Result<JobEnd, Violation> {
        let id = self.members[place].id;
        let Some(process) = &mut self.members[place].process else { return Ok(Ok(())) };
        let done = match job {
            MachineJob::Apply(entries) => process.applier.apply(&entries),
            MachineJob::Query(token, query) => process.applier.query(token, query.as_ref()),
            MachineJob::Snapshot(meta) => process.applier.capture(meta),
            MachineJob::SendState { envelope, stored } => {
                return self.send_state(place, envelope, stored);
            }
            MachineJob::Install(meta) => {
                match quorate::driver::install(&mut process.store, &mut process.applier, &meta) {
                    Ok(done) => Ok(done),
                    Err(why) => return Ok(Err(why.into())),
                }
            }
        };
        let done = match done {
            Ok(done) => done,
            Err(why) => return Ok(Err(why.into())),
        };
        self.note_versions(place, &done)?;
        let Some(process) = &mut self.members[place].process else { return Ok(Ok(())) };
        match done {
            MachineJobDone::Captured { meta, chunks } => {
                let index = meta.id.index;
                process.applier.machine().survives_capture((self.machine)())?;
                let chunks: Vec<Bytes> = match chunks.collect() {
                    Ok(chunks) => chunks,
                    Err(why) => return Ok(Err(why)),
                };
                self.invariants.captured(id, index, hash_of(&chunks))?;
                process.disk_waits.push(DiskWork::Capture(meta, chunks));
            }
            done => {
                if let MachineJobDone::Installed { meta, .. } = &done {
                    let resumed = meta.id.index.max(process.applier.resumed());
                    self.clients.answers.resumed(id, resumed);
                }
                process.driver.job_done(done);
            }
        }
        self.record_applied_commands(place)
    }

    /// A peer gets the machine's state instead of a snapshot on the disk.
    fn send_state(
        &mut self,
        place: usize,
        envelope: Envelope,
        stored: Index,
    ) -> Result<JobEnd, Violation> {
        let id = self.members[place].id;
        let Some(process) = &mut self.members[place].process else { return Ok(Ok(())) };
        let state = match process.applier.state_to_send(&envelope, stored) {
            Ok(state) => state,
            Err(why) => return Ok(Err(why.into())),
        };
        let chunks = match state.map(Iterator::collect::<Result<Vec<Bytes>, _>>).transpose() {
            Ok(chunks) => chunks,
            Err(why) => return Ok(Err(why)),
        };
        if let (Some(chunks), Message::Snapshot(meta)) = (&chunks, &envelope.message) {
            process.applier.machine().survives_capture((self.machine)())?;
            self.invariants.captured(id, meta.id.index, hash_of(chunks))?;
            self.report.count("state sent to a peer");
        }
        self.send_snapshot(place, envelope, chunks);
        Ok(Ok(()))
    }

    fn record_applied_commands(&mut self, place: usize) -> Result<JobEnd, Violation> {
        let id = self.members[place].id;
        let Some(process) = &mut self.members[place].process else { return Ok(Ok(())) };
        for command in std::mem::take(&mut process.applier.machine_mut().ran) {
            let RanCommand { index, operation, too_early, .. } = command;
            let request = RequestId(operation);
            let recorded = self.clients.answers.applied(id, index, request);
            recorded.map_err(|why| Violation::new("R2", why.to_string()))?;
            self.note_command(place, &command)?;
            if !too_early {
                self.clients.ran(operation, index);
            }
        }
        Ok(Ok(()))
    }
}

/// The error ends the member.
type JobEnd = Result<(), Box<dyn Error + Send + Sync>>;

fn write_snapshot(
    store: &mut Store<SharedDisk>,
    meta: SnapshotMeta,
    chunks: &[Bytes],
) -> Result<(), StoreError> {
    let mut writer = store.begin_snapshot(meta)?;
    for chunk in chunks {
        store.append_snapshot(&mut writer, chunk)?;
    }
    store.finish_snapshot(writer)
}

/// The transfer breaks off: the file is left as it is.
fn write_part_of_snapshot(
    store: &mut Store<SharedDisk>,
    meta: SnapshotMeta,
    chunks: &[Bytes],
) -> Result<(), StoreError> {
    let mut writer = store.begin_snapshot(meta)?;
    let part = &chunks[..chunks.len() / 2];
    part.iter().try_for_each(|chunk| store.append_snapshot(&mut writer, chunk))
}

fn hash_of(chunks: &[Bytes]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    // The chunk boundaries are part of the hash: they must be the same at all members.
    chunks.hash(&mut hasher);
    hasher.finish()
}
