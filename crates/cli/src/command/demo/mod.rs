//! `quorate demo`: runs three members as processes of this program, and replaces one of them
//! with a fourth while clients write. With `--beside`, another cluster of another program goes
//! through the same procedure at the same time.
//!
//! Owns the cleanup: no process and no temporary directory is left behind, however it ends.

mod certificates;
mod cluster;
mod column;
mod directory;
mod load;
mod observer;
mod other_program;
mod procedure;
mod render;
mod replacement;
mod screen;
mod styled;
mod summary;

use std::sync::Arc;

use self::cluster::DemoCluster;
use self::column::{Column, ColumnOutput};
use self::directory::DemoDirectory;
use self::other_program::OtherProgram;
use self::procedure::ProcedureResult;
use self::screen::FullScreen;
use crate::arguments::DemoArguments;
use crate::error::CliError;
use crate::print::{counted, line, pipe_closed};

pub(crate) async fn run(arguments: DemoArguments) -> Result<(), CliError> {
    // Before anything is started: from here on a signal stops the demo with cleanup.
    let interrupted = interrupted()?;
    let programs = programs(&arguments)?;
    let directory = DemoDirectory::create(arguments.data_dir.as_deref())?;
    let result = run_in(&directory, &arguments, programs, interrupted).await;
    match directory.release()? {
        Some(path) => line(&format!("the members' data is in {}", path.display())),
        None => line("the members' data is removed"),
    }
    result
}

/// A cluster and what is shown of it.
struct Contestant {
    cluster: DemoCluster,
    column: Arc<Column>,
    /// Number of writing clients.
    clients: u32,
}

/// The programs of the clusters; none is Quorate's own server.
fn programs(arguments: &DemoArguments) -> Result<Vec<Option<OtherProgram>>, CliError> {
    let first = arguments.program.as_deref().map(OtherProgram::find).transpose()?;
    let second = arguments.beside.as_deref().map(OtherProgram::find).transpose()?;
    Ok([vec![first], second.map(Some).into_iter().collect()].concat())
}

fn contestants(
    directory: &DemoDirectory,
    arguments: &DemoArguments,
    programs: Vec<Option<OtherProgram>>,
) -> Result<Vec<Contestant>, CliError> {
    let is_alone = programs.len() == 1;
    let one = |(number, program): (usize, Option<OtherProgram>)| {
        let (name, version) = match &program {
            Some(program) => (program.name.clone(), program.version.clone()),
            None => ("quorate".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        };
        let output = match (screen::is_available(), is_alone) {
            (true, _) => ColumnOutput::Screen,
            (false, true) => ColumnOutput::Lines(String::new()),
            (false, false) => ColumnOutput::Lines(format!("{name:8}| ")),
        };
        // The directory of the user has the members of the first cluster.
        let path = match number {
            0 => directory.path().to_path_buf(),
            _ => directory.path().join("beside"),
        };
        let cluster = DemoCluster::new(path, program.map(|program| program.path), arguments.tls)?;
        let column = Arc::new(Column::new(&name, &version, output));
        Ok(Contestant { cluster, column, clients: arguments.clients })
    };
    programs.into_iter().enumerate().map(one).collect()
}

/// Runs the demo until it ends or is interrupted, and stops the members.
async fn run_in(
    directory: &DemoDirectory,
    arguments: &DemoArguments,
    programs: Vec<Option<OtherProgram>>,
    interrupted: impl Future<Output = ()>,
) -> Result<(), CliError> {
    let mut contestants = contestants(directory, arguments, programs)?;
    let mut interrupted = std::pin::pin!(interrupted);
    let result = tokio::select! {
        result = run_all(&mut contestants, arguments) => result.map(Some),
        () = &mut interrupted => Ok(None),
    };
    let result = match result {
        Ok(Some(results)) => {
            summary::print(&contestants, &results);
            if !arguments.once {
                summary::print_next_steps(&contestants[0].cluster, results[0].members);
                interrupted.await;
                line("interrupted");
            }
            summary::check(&results)
        }
        Ok(None) => {
            line("interrupted");
            Ok(())
        }
        Err(error) => Err(error),
    };
    let mut failures = 0;
    for contestant in &mut contestants {
        failures += contestant.cluster.stop_all().await;
    }
    match failures {
        0 => line("all members are stopped"),
        count => {
            line(&format!("{} not be stopped", counted(count, "member could", "members could")));
        }
    }
    result
}

/// The procedure on all clusters at the same time, so that they have the same conditions. What
/// was on the screen is printed afterwards.
async fn run_all(
    contestants: &mut [Contestant],
    arguments: &DemoArguments,
) -> Result<Vec<ProcedureResult>, CliError> {
    let columns: Vec<_> = contestants.iter().map(|one| one.column.clone()).collect();
    // In this order: the screen ends before the timelines are printed.
    let _printed = PrintedAtEnd(columns.clone());
    let _screen = screen::is_available()
        .then(|| FullScreen::enter(columns, procedure::screen_texts(arguments)));
    match contestants {
        [first, second] => tokio::try_join!(
            procedure::run(&mut first.cluster, &first.column, arguments),
            procedure::run(&mut second.cluster, &second.column, arguments),
        )
        .map(|(first, second)| vec![first, second]),
        [one] => {
            procedure::run(&mut one.cluster, &one.column, arguments).await.map(|one| vec![one])
        }
        _ => Err(CliError::failed("the demo has one or two clusters")),
    }
}

/// Prints the timelines when it is dropped: at the end, or when the demo is interrupted.
struct PrintedAtEnd(Vec<Arc<Column>>);

impl Drop for PrintedAtEnd {
    fn drop(&mut self) {
        self.0.iter().for_each(|column| column.print_timeline());
    }
}

/// Completes when the demo should stop: on a signal, or when the output pipe is closed.
fn interrupted() -> Result<impl Future<Output = ()>, CliError> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |error: std::io::Error| CliError::with_cause("cannot listen for signals", &error);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(failed)?;
    let mut quit = signal(SignalKind::quit()).map_err(failed)?;
    let closed = pipe_closed();
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
            _ = quit.recv() => {}
            () = closed.notified() => {}
        }
    })
}
