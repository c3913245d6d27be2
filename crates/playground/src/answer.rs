//! Requests of the page and their answers.

use quorate_sim::scenario::{
    ClusterPicture, EntryPicture, MemberPicture, MessagePicture, Playback, PlayedLine, StoryError,
};
use serde_json::{Value, json};

use crate::presets::PRESETS;

/// The answer to a request; an error is an answer as well.
pub(crate) fn answer(input: &str) -> Value {
    let (request, story) = input.split_once('\n').unwrap_or((input, ""));
    let answered = match request.trim() {
        "presets" => Ok(presets()),
        "play" => Playback::play(story).map(|playback| {
            let lines: Vec<_> = playback.lines.iter().map(line).collect();
            json!({ "activation": playback.activation, "lines": lines })
        }),
        "export" => Playback::transcribe(story).map(|text| json!({ "story": text })),
        other => Err(StoryError { line: 0, why: format!("`{other}` is no request") }),
    };
    answered.unwrap_or_else(|wrong| json!({ "error": { "line": wrong.line, "why": wrong.why } }))
}

fn presets() -> Value {
    let list = PRESETS.iter().map(|preset| {
        json!({
            "id": preset.id,
            "title": preset.title,
            "condition": preset.condition,
            "off": preset.off,
            "on": preset.on,
        })
    });
    json!({ "presets": list.collect::<Vec<_>>() })
}

fn line(line: &PlayedLine) -> Value {
    json!({
        "number": line.number,
        "text": line.text,
        "printed": line.printed,
        "failure": line.failure,
        "cluster": cluster(&line.cluster),
    })
}

fn cluster(cluster: &ClusterPicture) -> Value {
    json!({
        "members": cluster.members.iter().map(member).collect::<Vec<_>>(),
        "messages": cluster.messages.iter().map(message).collect::<Vec<_>>(),
    })
}

fn member(member: &MemberPicture) -> Value {
    json!({
        "id": member.id,
        "role": member.role,
        "term": member.term,
        "vote": member.vote,
        "leader": member.leader,
        "membership": member.membership,
        "majorities": member.majorities,
        "learners": member.learners,
        "base": member.base,
        "log": member.log.iter().map(entry).collect::<Vec<_>>(),
        "commit": member.commit,
        "applied": member.applied,
        "settled": member.settled,
        "elapsed": member.elapsed_ticks,
        "timeout": member.timeout_ticks,
    })
}

fn entry(entry: &EntryPicture) -> Value {
    json!({
        "index": entry.index,
        "term": entry.term,
        "text": entry.text,
        "change": entry.is_change,
        "committed": entry.committed,
        "known": entry.known,
        "settled": entry.settled,
        "saved": entry.saved,
    })
}

fn message(message: &MessagePicture) -> Value {
    json!({
        "from": message.from,
        "to": message.to,
        "kind": message.kind,
        "text": message.text,
        "held": message.held,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_is_played() {
        let story = "# covers: S01\n# only: on-apply\n# A story.\n\ncluster m1\ncampaign m1\n";
        let played = answer(&format!("play\n{story}"));
        assert_eq!(played["activation"], "on-apply");
        let last = &played["lines"][1];
        assert_eq!(last["text"], "campaign m1");
        assert_eq!(last["cluster"]["members"][0]["role"], "leader", "{played}");
    }

    #[test]
    fn mistakes_are_answers() {
        assert_eq!(answer("play\ncluster m1\n")["error"]["line"], 1);
        assert!(answer("dance").to_string().contains("`dance` is no request"));
        let failing = "# covers: S01\n# Prose.\n\ncluster m1 m2\nexpect m1 leader\n";
        assert_eq!(answer(&format!("export\n{failing}"))["error"]["line"], 5);
    }

    /// The same request has the same answer, so going back shows what was there.
    #[test]
    fn answers_do_not_depend_on_earlier_requests() {
        let request = format!("play\n{}", PRESETS[0].on);
        assert_eq!(answer(&request), answer(&request));
    }
}
