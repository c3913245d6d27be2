//! Long workloads by chance: works, crashes and restarts in any order.

use quorate_storage::Store;

use super::Violation;
use super::member::{Ended, Member};
use super::model::{CONFIG, EXPECTED, IDENTITY, Model, Work, first_boot};
use crate::faulty_disk::FaultyDisk;
use crate::random::Random;

/// What happened on a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalkReport {
    pub works: u64,
    pub crashes: u64,
}

/// Plays so many pieces of work, and loses power now and then, also in their midst.
pub fn walk(seed: u64, steps: u32) -> Result<WalkReport, Violation> {
    let mut random = Random::new(seed);
    let mut report = WalkReport::default();
    let mut works = Vec::new();
    let mut disk = FaultyDisk::new();
    let violation = |works: &[Work], what: String| Violation { works: works.to_vec(), what };
    Store::create(&mut disk, IDENTITY, &first_boot(), &CONFIG)
        .map_err(|why| violation(&[], why.to_string()))?;
    let mut model = Model::new(&first_boot());
    let mut member: Option<Member> = None;
    for _ in 0..steps {
        let mut playing = match member.take() {
            Some(playing) => playing,
            None => {
                let mut opened = Store::open(disk.clone(), EXPECTED, &CONFIG)
                    .map_err(|why| violation(&works, format!("cannot open: {why}")))?;
                model.opened(&mut opened).map_err(|what| violation(&works, what))?;
                Member { store: opened.store, model: model.clone() }
            }
        };
        let work = Work::ALL[random.below(Work::ALL.len() as u64) as usize];
        works.push(work);
        report.works += 1;
        let stop = (random.below(4) == 0).then(|| u64::from(random.below(12)));
        playing.store.disk_mut().stop_after(stop);
        match playing.play(work).map_err(|what| violation(&works, what))? {
            Ended::Done(mut done) if !done.store.disk().has_stopped() => {
                done.store.disk_mut().stop_after(None);
                member = Some(done);
                continue;
            }
            Ended::Done(done) => (disk, model) = (done.store.into_disk(), done.model),
            Ended::Stopped(left, known) => (disk, model) = (left, known),
        }
        disk.crash(&mut random);
        report.crashes += 1;
    }
    Ok(report)
}
