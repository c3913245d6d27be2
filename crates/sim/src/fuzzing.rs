//! Entry points for the fuzz targets in `fuzz/`. Not part of the public API.

/// Parses the text of a story. Returns whether it is valid.
pub fn parse_story(text: &str) -> bool {
    crate::scenario::is_story(text)
}
