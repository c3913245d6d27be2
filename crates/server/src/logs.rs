//! Logs in the formats of zap, which etcd's tools read: JSON lines, or text for people.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, Registry};

use crate::config::{LogFormat, LogOutput};

/// Writes events of this level and above to these outputs. Only the first call of a process has
/// an effect. The error is about a file that cannot be opened.
pub fn start(level: &str, format: LogFormat, outputs: &[LogOutput]) -> io::Result<()> {
    let level = match level {
        "debug" => Level::DEBUG,
        "warn" => Level::WARN,
        "info" => Level::INFO,
        _ => Level::ERROR,
    };
    let outputs: io::Result<Vec<LogWriter>> = outputs.iter().map(LogWriter::open).collect();
    let subscriber = Registry::default().with(LogLines { level, format, outputs: outputs? });
    // Fails if a subscriber is set already, which then stays.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}

/// Debug lines are written as well, whatever the level of the flags is.
static DEBUG_TOO: AtomicBool = AtomicBool::new(false);

/// Begins to write debug lines, or ends it. Returns whether they are written now.
pub(crate) fn toggle_debug() -> bool {
    let debug = !DEBUG_TOO.fetch_xor(true, Ordering::Relaxed);
    // Which lines are written was decided when the process began.
    tracing::callsite::rebuild_interest_cache();
    debug
}

struct LogLines {
    level: Level,
    format: LogFormat,
    outputs: Vec<LogWriter>,
}

/// An open [`LogOutput`].
enum LogWriter {
    Stderr,
    Stdout,
    File(File),
}

impl LogWriter {
    fn open(output: &LogOutput) -> io::Result<Self> {
        Ok(match output {
            LogOutput::Stderr => Self::Stderr,
            LogOutput::Stdout => Self::Stdout,
            LogOutput::File(path) => {
                let file = File::options().create(true).append(true).open(path);
                let named = |error| {
                    let path = path.display();
                    io::Error::other(format!("cannot open the log file {path}: {error}"))
                };
                Self::File(file.map_err(named)?)
            }
        })
    }

    /// Writes a whole line in one call, so that lines of several processes do not mix.
    fn write(&self, line: &[u8]) -> io::Result<()> {
        match self {
            Self::Stderr => io::stderr().lock().write_all(line),
            Self::Stdout => io::stdout().lock().write_all(line),
            Self::File(file) => (&*file).write_all(line),
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogLines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>, _: Context<'_, S>) -> bool {
        // A warning needs the fields of the span that it is in, whatever the level of that is.
        let level = match DEBUG_TOO.load(Ordering::Relaxed) {
            true => self.level.max(Level::DEBUG),
            false => self.level,
        };
        let level = if metadata.is_span() { level.max(Level::INFO) } else { level };
        // Events of third-party libraries are left out.
        *metadata.level() <= level && metadata.target().starts_with("quorate")
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        keep_span_fields(attributes, id, &context);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let fields = span_fields(event, &context);
        let line = match self.format {
            LogFormat::Json => json_line(event, fields, SystemTime::now()),
            LogFormat::Console => console_line(event, fields, SystemTime::now()),
        };
        for output in &self.outputs {
            // A failure to write a log line cannot be reported anywhere.
            let _ = output.write(line.as_bytes());
        }
    }
}

/// Keeps the fields of a span for the events in it.
fn keep_span_fields<S: Subscriber + for<'a> LookupSpan<'a>>(
    attributes: &Attributes<'_>,
    id: &Id,
    context: &Context<'_, S>,
) {
    let mut fields = EventFields::default();
    attributes.record(&mut fields);
    if let Some(span) = context.span(id) {
        span.extensions_mut().insert(fields);
    }
}

/// The fields of the spans that an event is in, such as the member or the address of a peer. Of
/// fields with the same name, the innermost counts.
fn span_fields<S: Subscriber + for<'a> LookupSpan<'a>>(
    event: &Event<'_>,
    context: &Context<'_, S>,
) -> EventFields {
    let mut all = EventFields::default();
    for span in context.event_scope(event).into_iter().flat_map(|scope| scope.from_root()) {
        if let Some(kept) = span.extensions().get::<EventFields>() {
            all.fields.extend(kept.fields.clone());
        }
    }
    all
}

/// The place in the code that an event comes from.
fn caller(event: &Event<'_>) -> String {
    let metadata = event.metadata();
    let file = metadata.file().and_then(|file| file.rsplit_once("src/")).map_or("", |(_, f)| f);
    let target = metadata.target().split("::").next().unwrap_or_default();
    format!("{target}/{file}:{}", metadata.line().unwrap_or_default())
}

/// Time, level, place, message and fields, separated by tabs. `fields` has those of the spans; the
/// event adds its own.
fn console_line(event: &Event<'_>, mut fields: EventFields, now: SystemTime) -> String {
    event.record(&mut fields);
    let (level, caller) = (event.metadata().level().as_str().to_lowercase(), caller(event));
    let mut line =
        format!("{}\t{level}\t{caller}\t{}", timestamp(now, LOG_DECIMALS), fields.message);
    if !fields.fields.is_empty() {
        line.push_str(&format!("\t{}", Value::Object(fields.fields)));
    }
    line.push('\n');
    line
}

/// A JSON object. `fields` has those of the spans; the event adds its own.
fn json_line(event: &Event<'_>, mut fields: EventFields, now: SystemTime) -> String {
    event.record(&mut fields);
    let level = event.metadata().level().as_str().to_lowercase();
    let quoted = |text: &str| Value::from(text).to_string();
    let mut line = format!(
        "{{\"level\":{},\"ts\":{},\"caller\":{},\"msg\":{}",
        quoted(&level),
        quoted(&timestamp(now, LOG_DECIMALS)),
        quoted(&caller(event)),
        quoted(&fields.message)
    );
    for (name, value) in &fields.fields {
        line.push_str(&format!(",{}:{value}", quoted(name)));
    }
    line.push_str("}\n");
    line
}

/// The message and the fields of an event.
#[derive(Default)]
struct EventFields {
    message: String,
    fields: Map<String, Value>,
}

impl EventFields {
    fn set(&mut self, field: &Field, value: Value) {
        self.fields.insert(field.name().replace('_', "-"), value);
    }
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            _ => self.set(field, text.into()),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }
}

/// Lines of the log have microseconds.
pub(crate) const LOG_DECIMALS: usize = 6;

/// In the format of RFC 3339, in UTC, with this many decimals of a second, 6 at most.
pub fn timestamp(time: SystemTime, decimals: usize) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, mut fraction) = (since.as_secs(), format!("{:06}", since.subsec_micros()));
    fraction.truncate(decimals);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction}Z")
}

/// The date this many days after 1 January 1970.
fn date(days: u64) -> (u64, u64, u64) {
    // Years start on 1 March, so that a leap day is the last day of its year.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let year = era * 400 + year_of_era + u64::from(month >= 10);
    (year, if month < 10 { month + 3 } else { month - 9 }, day)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;

    /// Collects lines instead of writing them.
    #[derive(Clone, Default)]
    struct CollectedLines(Arc<Mutex<Vec<String>>>);

    impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for CollectedLines {
        fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
            keep_span_fields(attributes, id, &context);
        }

        fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
            let line = json_line(event, span_fields(event, &context), UNIX_EPOCH);
            self.0.lock().unwrap().push(line);
        }
    }

    #[test]
    fn events_have_the_fields_of_their_spans() {
        let lines = CollectedLines::default();
        let subscriber = Registry::default().with(lines.clone());
        tracing::subscriber::with_default(subscriber, || {
            let outer = tracing::info_span!("member", member = "a1", cluster = "c1");
            let inner = tracing::info_span!(parent: &outer, "link", address = "h:1");
            let _entered = inner.enter();
            tracing::info!(member = "a2", "connected to peer");
        });
        let lines = lines.0.lock().unwrap();
        let line: Value = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(line["msg"], "connected to peer");
        assert_eq!(line["address"], "h:1");
        assert_eq!(line["cluster"], "c1");
        assert_eq!(line["member"], "a2", "the innermost counts");
    }

    #[test]
    fn timestamps_have_the_right_date() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(timestamp(time, LOG_DECIMALS), text);
        }
        let time = UNIX_EPOCH + Duration::from_micros(1_794_902_709_123_456);
        assert_eq!(timestamp(time, 3), "2026-11-17T08:05:09.123Z");
    }
}
