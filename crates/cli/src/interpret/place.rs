//! Finds the line of a file for an error in a script.
//!
//! Lua counts the lines of the script; users have a YAML file that contains the script. If the script's lines appear unchanged in
//! the file (a block scalar), the place is exact; otherwise none is given.

use interpreter::Operation;

use super::{Manifest, in_order, read};

/// Returns the line in a message of Lua: `<string>:2: …` at run time, `<string> line:2(column:9) …` before.
pub(super) fn line(message: &str) -> Option<usize> {
    let rest = message.split_once("<string>")?.1;
    let rest = rest.strip_prefix(':').or_else(|| rest.strip_prefix(" line:"))?;
    let digits = rest.find(|each: char| !each.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok().filter(|line| *line > 0)
}

/// Returns `file:line` for a line of a script.
pub(super) fn in_file(manifest: &Manifest, script: &str, line: Option<usize>) -> Option<String> {
    // Customizations from the control plane, stdin or another server have no local file.
    let text = std::fs::read_to_string(&manifest.source).ok()?;
    let found = first_line(&text, script)? + line?;
    Some(format!("{}:{found}", manifest.source))
}

/// Returns the number of lines in a text before a script that it contains.
fn first_line(text: &str, script: &str) -> Option<usize> {
    let (text, script): (Vec<&str>, Vec<&str>) =
        (text.lines().map(str::trim).collect(), script.trim_end().lines().map(str::trim).collect());
    if script.is_empty() {
        return None;
    }
    text.windows(script.len()).position(|window| window == script)
}

/// Returns the place of a runtime error.
pub(super) fn of_run(
    manifests: &[Manifest],
    customization: &str,
    operation: Operation,
    message: &str,
) -> Option<String> {
    let name = |manifest: &&Manifest| {
        manifest.object["metadata"]["name"].as_str().unwrap_or_default() == customization
    };
    let manifest = manifests.iter().find(name)?;
    let typed = read(manifest).ok()?;
    let script = in_order(&typed.spec.customizations).into_iter().find(|(each, _)| *each == operation)?.1?;
    in_file(manifest, script, line(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_in_messages_of_both_kinds() {
        for (message, expected) in [
            ("<string>:12: attempt to index", Some(12)),
            ("<string> line:3(column:7) near 'end':   syntax error", Some(3)),
            ("context deadline exceeded", None),
            ("<string>:x", None),
            ("<string> at EOF:   syntax error", None),
        ] {
            assert_eq!(line(message), expected, "{message}");
        }
    }

    #[test]
    fn a_script_is_found_where_it_stands() {
        let text = "a: 1\nluaScript: |\n  function F()\n    return 1\n  end\n";
        assert_eq!(first_line(text, "function F()\n  return 1\nend\n"), Some(2));
        assert_eq!(first_line(text, "function G()\nend\n"), None);
        assert_eq!(first_line(text, "\n"), None);
    }
}
