//! Finds the commands in a Markdown file.

/// A block of commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    /// Where it begins, counted from 1.
    pub(crate) line: usize,
    pub(crate) commands: String,
    /// Words that it has to print.
    pub(crate) expected: Vec<String>,
}

/// Returns the blocks that are to be run, in order.
pub(crate) fn blocks(text: &str) -> Result<Vec<Block>, String> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut open: Option<(bool, Block)> = None;
    let mut skip = false;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if let Some((runs, mut block)) = open.take() {
            if line.trim_end() != "```" {
                block.commands.push_str(line);
                block.commands.push('\n');
                open = Some((runs, block));
            } else if runs {
                blocks.push(block);
            }
            continue;
        }
        if let Some(language) = line.strip_prefix("```") {
            if matches!(language, "bash" | "shell" | "console") {
                return Err(format!("line {number}: commands are marked `sh`, not `{language}`"));
            }
            let runs = language == "sh" && !std::mem::take(&mut skip);
            open = Some((runs, Block { line: number, commands: String::new(), expected: Vec::new() }));
        } else if let Some(words) = comment(line, "expect:") {
            let last = blocks.last_mut().ok_or(format!("line {number}: there is no block before"))?;
            last.expected.push(words);
        } else if comment(line, "not run:").is_some_and(|reason| !reason.is_empty()) {
            skip = true;
        } else if !line.trim().is_empty() && skip {
            return Err(format!("line {number}: `not run` stands right before a block"));
        }
    }
    match open {
        Some((_, block)) => Err(format!("line {}: the block does not end", block.line)),
        None => Ok(blocks),
    }
}

fn comment(line: &str, kind: &str) -> Option<String> {
    let inner = line.trim().strip_prefix("<!--")?.strip_suffix("-->")?;
    Some(inner.trim().strip_prefix(kind)?.trim().to_owned())
}

#[test]
fn commands_are_told_from_what_only_shows() {
    let text = "```sh\na\nb\n```\n<!-- expect: x y -->\n```text\nc\n```\n<!-- not run: long -->\n```sh\nd\n```\n```sh\ne\n```\n";
    let block = |line, commands: &str, expected: &[&str]| Block {
        line,
        commands: commands.to_owned(),
        expected: expected.iter().map(|words| (*words).to_owned()).collect(),
    };
    assert_eq!(blocks(text), Ok(vec![block(1, "a\nb\n", &["x y"]), block(13, "e\n", &[])]));
    for wrong in ["```bash\nx\n```\n", "```sh\nx\n", "<!-- expect: x -->\n", "<!-- not run: why -->\ntext\n"]
    {
        assert!(blocks(wrong).is_err(), "{wrong}");
    }
}
