//! What is a program, and what is said of what is not.

use super::*;

fn fault(script: &str) -> Option<String> {
    parse(script).err()
}

#[test]
fn programs_are_programs() {
    for good in [
        "",
        "return 1",
        "function GetReplicas(obj) replica = obj.spec.replicas; return replica, nil end",
        "local a, b = 1, 'x' for i = 1, 10, 2 do if i == 3 then break end end",
        "for k, v in pairs(t) do t[k] = v .. [[x]] end",
        "while true do repeat local x = -#t until not x end",
        "a.b['c']:d{1, 2; x = 3, [4] = 5}.e = function(...) return ... end",
        "f 'x' (g)",
        "(f)()",
        "(f())",
        "x = (1 + 2) * 3 ^ -2 % 4 -- comment\n--[[ long\ncomment ]] y = 0x1F + .5e-3",
        "do goto done end ::done::",
        "local s = [==[ ]] ]==]",
        "if a then elseif b then else end;",
        "local function f(a, ...) return select('#', ...) end",
        "x = (a.b or c)(1)",
    ] {
        assert_eq!(fault(good), None, "{good}");
    }
}

#[test]
fn the_first_token_that_does_not_fit_is_named() {
    for (bad, expected) in [
        ("return 1 +", "<string> at EOF:   syntax error\n"),
        ("function f( end", "<string> line:1(column:15) near 'end':   syntax error\n"),
        ("x = = 1", "<string> line:1(column:5) near '=':   syntax error\n"),
        ("x", "<string> at EOF:   parse error\n"),
        ("x y", "<string> line:1(column:3) near 'y':   parse error\n"),
        ("local x = 1\nend", "<string> line:2(column:3) near 'end':   syntax error\n"),
        ("(a) = 1", "<string> line:1(column:5) near '=':   syntax error\n"),
        ("x = 'abc", "<string> at EOF:   unterminated string\n"),
        ("x = 1 ~ 2", "<string> line:1(column:7) near '~':   Invalid '~' token\n"),
        ("x = @", "<string> line:1(column:5) near '@':   Invalid token\n"),
        ("break", "compile error near line(1) <string>: no loop to break"),
        (
            "function f() return ... end",
            "compile error near line(1) <string>: cannot use '...' outside a vararg function",
        ),
        ("goto nowhere", "compile error near line(1) <string>: no visible label 'nowhere' for goto"),
    ] {
        assert_eq!(fault(bad).as_deref(), Some(expected), "{bad}");
    }
}

#[test]
fn deep_nesting_is_refused_instead_of_exhausting_the_stack() {
    let deep = format!("x = {}1{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(fault(&deep).is_some());
    let deep = format!("x = {}", "not ".repeat(100_000));
    assert!(fault(&deep).is_some());
}

#[test]
fn scripts_that_nest_are_compiled_or_refused_on_a_small_stack() {
    let nested = |levels: usize| {
        let script = "function f() ".repeat(levels) + &"end ".repeat(levels);
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let compiled = small.spawn(move || crate::lua::Script::compile(&script).map(drop)).expect("a thread");
        compiled.join().expect("an answer")
    };
    assert_eq!(nested(190), Ok(()));
    let fault = nested(100_000).expect_err("too deep");
    assert!(fault.contains("too many syntax levels"), "{fault}");
}
