//! Scripts that mean harm: each ends within its bounds, and the error names the customization.

use std::sync::Arc;

use api::config::ResourceInterpreterCustomization;
use interpreter::{Customizations, Error, Limit, Rulebook as _};
use jiff::Timestamp;
use serde_json::{Value, json};

/// What a script does; every one would run for ever, take all memory or exhaust the stack if it were let.
const DEEDS: &[&str] = &[
    // loops
    "while true do end",
    "repeat until false",
    "for i = 1, math.huge do end",
    "for i = 1, 1e300 do end",
    "while true do local x = {} end",
    "local i = 0 while true do i = i + 1 end",
    "for k in function() return 1 end do end",
    "::top:: goto top",
    "while true do pcall(function() while true do end end) end",
    "while true do pcall(error, 'x') end",
    "while true do pcall(pcall, pcall, error) end",
    "while true do local ok = pcall(string.rep, 'x', 1e9) end",
    "while true do xpcall(function() error({}) end, function(e) return e end) end",
    "local t = {} while true do t[#t + 1] = t end",
    "local function f() return f() end f()",
    "local function f(n) return f(n + 1) end return f(0)",
    "while true do select('#', 1, 2, 3) end",
    "while true do tostring({}) end",
    "while true do os.time() end",
    "while true do os.date('%c') end",
    "while true do math.random() end",
    "while true do tonumber('123456789') end",
    "while true do kube.resourceAdd('1Gi', '1M') end",
    "while true do kube.accuratePodRequirements({spec = {containers = {{name = 'a'}}}}) end",
    "while true do next({}) end",
    "local s, t = 'x', {} for i = 1, 20 do s = s .. s end for i = 1, 1000 do t[i] = s end kube.getPodDependencies(t, 'x')",
    "local s, t = 'x', {} for i = 1, 20 do s = s .. s end for i = 1, 1000 do t[i] = {secret = {secretName = 's' .. i}} end \
     kube.getPodDependencies({spec = {volumes = t}}, s)",
    "local s = 'x' for i = 1, 20 do s = s .. s end while true do kube.accuratePodRequirements({spec = {x = s}}) end",
    "local s = 'x' for i = 1, 20 do s = s .. s end while true do pcall(kube.resourceAdd, s) end",
    // strings
    "local s = 'x' while true do s = s .. s end",
    "local s = 'x' while true do s = s .. 'x' end",
    "local s = 'x' local t = {} while true do s = s .. s t[#t + 1] = s end",
    "string.rep('x', 1e9) while true do end",
    "string.gsub(('x'), '.', 'y') while true do end",
    "local t = {} while true do t[#t + 1] = 'abc' .. #t end",
    "local t = {} for i = 1, 1e7 do t[i] = string.format('%s', i) end",
    "while true do string.format('%999999d', 1) end",
    "local t = {} while true do t[#t + 1] = string.format('%999999d', 1) end",
    "local s = '' for i = 1, 1e7 do s = table.concat({s, s, 'x'}) end",
    "local t = {} for i = 1, 1e5 do t[i] = 'xxxxxxxxxxxxxxxx' end while true do t[1] = table.concat(t) end",
    "local s = string.format('%900000d', 1) while true do s:upper() end",
    "local s = string.format('%900000d', 1) while true do s:reverse() end",
    "local s = string.format('%900000d', 1) while true do s:sub(1, 899999) end",
    "local s = string.format('%900000d', 1) local t = {} while true do t[s] = 1 end",
    "local a, b = string.format('%900000d', 1), string.format('%900000d', 2) while true do local x = a < b end",
    "local a, b = string.format('%900000d', 1), string.format('%900000d', 1) while true do local x = a == b end",
    "local s = string.format('%900000d', 1) string.byte(s)",
    "while true do string.char(1, 2, 3) end",
    "error(string.format('%999999d', 1))",
    "local s = string.format('%999999d', 1) while true do error(s .. s) end",
    "local s = string.format('%900000d', 1) local t = nil return t[s]",
    // patterns
    "string.find(string.format('%0900000d', 0), '.-.-.-.-.-.-.-.-x')",
    "string.find(string.format('%030d', 0), '0*0*0*0*0*0*0*0*0*0*0*0*x')",
    "string.match(string.format('%0900d', 0), '(0*)(0*)(0*)(0*)(0*)x')",
    "string.find(string.format('%0900000d', 0), '0*0*x')",
    "string.find(string.format('%0900000d', 0), '(0+)%1x')",
    "for a in string.gmatch(string.format('%0900000d', 0), '0') do end",
    "for a in string.gmatch(string.format('%0900000d', 0), '') do end",
    "for a, b in string.gmatch(string.format('%0900000d', 0), '(0)()') do end while true do end",
    "string.find(string.format('%0900000d', 0), '%b01')",
    "while true do string.find('aaaaaaaaaaaaaaaaaaaaaaaa', 'a-a-a-a-b') end",
    "string.find(string.format('%0900000d', 0), string.format('%0400000d1', 0), 1, true)",
    "string.find('x', string.format('%0900000d', 0))",
    "string.find('a', '((((((((((((((((((((((((((((((((((((((((((' ) while true do end",
    "local p = '(' for i = 1, 15 do p = p .. p end string.find('x', p) while true do end",
    "local p = '[a' for i = 1, 15 do p = p .. p end while true do pcall(string.find, 'x', p) end",
    "local p = 'a?' for i = 1, 6 do p = p .. p end string.find(string.format('%030d', 0), p .. 'b')",
    // tables
    "local t = {} for i = 1, 1e9 do t[i] = i end",
    "local t = {} for i = 1, 1e9 do t['k' .. i] = i end",
    "local t = {} t[67000000] = 1",
    "local t = {} t[6e7] = 1 return #t",
    "local t = {} for i = 1, 1e9 do t = {t} end",
    "local t = {} for i = 1, 1e9 do t = {next = t, prev = t} end",
    "local t = {} while true do table.insert(t, 1, 1) end",
    "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.insert(t, 1, 1) table.remove(t, 1) end",
    "local t = {} for i = 1, 1e5 do t[i] = i end while true do table.sort(t, function(a, b) return a > b end) end",
    "local t = {} for i = 1, 1e5 do t[i] = i % 7 end while true do table.sort(t) end",
    "table.sort({3, 1, 2, 5, 4, 9, 8, 7, 6, 10, 11, 12, 13, 14}, function() while true do end end)",
    "local t = {} for i = 1, 300 do t[i] = i end table.sort(t, function() return true end) while true do end",
    "local t = {} for i = 1, 100 do t[i] = i end table.sort(t, function(a, b) t[#t + 1] = a return a < b end) while true do end",
    "local t = {} for i = 1, 1e5 do t[i] = i end for i = 1, 1e5 do t[i] = nil end while true do next(t) end",
    "local t = {} for i = 1, 1e5 do t['k' .. i] = i end for k in pairs(t) do t[k] = nil end while true do next(t) end",
    "local t = {} for i = 1, 1e5 do t[i] = i end for i = 2, 1e5 do t[i] = nil end while true do local n = #t end",
    "local t = {} for i = 1, 1e5 do t[i] = i end unpack(t)",
    "unpack({}, 1, 1e9)",
    "unpack({}, 1, 1e300)",
    "unpack({}, -1e300, 1e300)",
    "local t = {} for i = 1, 1000 do t[i] = i end while true do local x = {unpack(t)} end",
    "local function f(...) return f(1, ...) end f()",
    "local function f(...) return ..., f(...) end f(1)",
    "local t = {} for k, v in pairs(t) do end t.a = 1 for k, v in pairs(t) do t[k .. 'x'] = 1 t[k] = nil end while true do end",
    // recursion
    "local function f() return 1 + f() end f()",
    "local function f() f() end f()",
    "local function f() local x = {f()} end f()",
    "local function f() pcall(f) end f() while true do end",
    "local function f() return pcall(f) end f() while true do end",
    "local function f() pcall(pcall, f) f() end f()",
    "local function f(a) table.sort({1, 2}, f) end f()",
    "local t = {} for i = 1, 5000 do t[i] = pcall end pcall(unpack(t)) while true do end",
    "local function f() xpcall(f, f) end f() while true do end",
    "local function f() error(f) end f()",
    "local t = {} t.t = t setmetatable(t, t) while true do end",
    // closures
    "local t = {} while true do local x = 1 t[#t + 1] = function() return x end end",
    "local f = function() end while true do local g = f f = function() return g() end end",
    "local f = function() end for i = 1, 1e5 do local g = f f = function() return 1 + g() end end f()",
    // what is not there
    "io.write('x')",
    "os.execute('true')",
    "os.exit(1)",
    "debug.getinfo(1)",
    "coroutine.wrap(function() end)()",
    "load('return 1')()",
    "loadstring('while true do end')()",
    "dofile('/etc/passwd')",
    "require('io')",
    "require('debug')",
    "package.loadlib('x', 'y')",
    "getfenv(0).x = 1",
    "setfenv(1, {})",
    "rawset(_G, 'x', 1)",
    "collectgarbage()",
    "newproxy(true)",
    "getmetatable('').__index = nil",
    "module('x')",
    "string.dump(print)",
    "_G.print = nil _G = nil pairs = nil while true do end",
    "for k in pairs(_G) do _G[k] = nil end while true do end",
    "string.format = nil ('x'):format() ",
    // errors
    "error()",
    "error(nil)",
    "error({})",
    "error({code = {}})",
    "error(print)",
    "error('x', 1e300)",
    "error('x', -1)",
    "error(('%s'):format(nil), 99)",
    "assert(false)",
    "assert(nil, 'no')",
    "local x = nil + 1",
    "local x = {} .. 'x'",
    "local x = #nil",
    "local x = -{}",
    "local x = {} < {}",
    "local t = {} t[nil] = 1",
    "local t = {} t[0 / 0] = 1",
    "nil_function()",
    "(1)()",
    "local x = ('x').y.z",
    "local s = 'x' s.y = 1",
    "for i = {}, 1 do end",
    "for k in 5 do end",
];

/// Results that cannot be a status.
const RESULTS: &[&str] = &[
    "local t = {} t.t = t return t",
    "local t = {} return {t, t}",
    "local t = {} for i = 1, 100000 do t = {t} end return t",
    "local t = {} for i = 1, 100000 do t = {a = t} end return t",
    "return {print}",
    "return {1, 2, nil, 4}",
    "return {1, a = 2}",
    "return {[true] = 1}",
    "return {[1.5] = 1}",
    "return {0 / 0}",
    "return {1 / 0}",
    "return 5",
    "return 'x'",
    "return print",
    "return nil",
    "return",
    "return string.gmatch('a', 'a')",
    // one text many times
    "local s = 'x' for i = 1, 20 do s = s .. s end local t = {} for i = 1, 1000 do t[i] = s end return t",
    "local s = 'x' for i = 1, 20 do s = s .. s end local t = {} for i = 1, 1000 do t[i] = {[s] = 1} end return t",
];

fn guest(script: &str) -> ResourceInterpreterCustomization {
    serde_json::from_value(json!({
        "metadata": {"name": "guest"},
        "spec": {
            "target": {"apiVersion": "example.io/v1", "kind": "Gadget"},
            "customizations": {"statusReflection": {"luaScript": script}},
        },
    }))
    .expect("a customization")
}

fn scripts() -> Vec<String> {
    let mut scripts = Vec::new();
    for deed in DEEDS {
        scripts.push(format!("local kube = require('kube')\nfunction ReflectStatus(o)\n  {deed}\nend"));
        // The main part of a script runs too.
        if scripts.len() % 3 == 0 {
            scripts.push(format!("local kube = require('kube')\n{deed}\nfunction ReflectStatus(o) end"));
        }
    }
    for result in RESULTS {
        scripts.push(format!("function ReflectStatus(o)\n  {result}\nend"));
    }
    let nest = |open: &str, middle: &str, close: &str| {
        format!(
            "function ReflectStatus(o) local x = {}{middle}{} end",
            open.repeat(50_000),
            close.repeat(50_000)
        )
    };
    scripts.extend([
        nest("(", "1", ")"),
        nest("{", "", "}"),
        nest("not ", "1", ""),
        nest("- ", "1", ""),
        nest("function() return ", "1", " end"),
        nest("f(", "1", ")"),
        nest("1 .. ", "1", ""),
        nest("1 ^ ", "1", ""),
        format!("{} {}", "do ".repeat(50_000), "end ".repeat(50_000)),
        format!("{} {}", "if true then ".repeat(50_000), "end ".repeat(50_000)),
        format!("{} {}", "while true do ".repeat(50_000), "end ".repeat(50_000)),
        format!("function ReflectStatus(o) return {} end", vec!["1"; 100_000].join(", ")),
        format!("function ReflectStatus(o) local {} end", vec!["a"; 5_000].join(", ")),
    ]);
    scripts
}

#[test]
fn whatever_a_script_does_it_ends_within_its_bounds_and_is_named() {
    let layer =
        Customizations::new(Arc::new(Timestamp::now)).with_limit(Limit { steps: Some(400_000), bytes: None });
    let gadget: Value = json!({"apiVersion": "example.io/v1", "kind": "Gadget", "metadata": {"name": "g"}});
    let scripts = scripts();
    assert!(scripts.len() >= 200, "there are only {}", scripts.len());
    for script in &scripts {
        layer.load([&guest(script)]);
        match layer.reflect_status(&gadget) {
            Err(Error::Script { customization, message, .. }) => {
                assert_eq!(customization, "guest");
                assert!(message.len() < 4096, "a message of {} bytes from {script:.200}", message.len());
            }
            other => panic!("{other:?} from {script:.300}"),
        }
    }
    // 64 MiB for the script that takes the most, and what the test itself needs.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    let peak: u64 = peak.unwrap_or(0);
    assert!(peak < 300 << 10, "{peak} KiB were in use");
}

#[test]
fn what_a_script_hands_over_counts_as_its_memory() {
    let layer =
        Customizations::new(Arc::new(Timestamp::now)).with_limit(Limit { steps: None, bytes: Some(1 << 20) });
    let gadget = json!({"apiVersion": "example.io/v1", "kind": "Gadget", "metadata": {"name": "g"}});
    let told = "the script needs more than 1 MiB of memory";
    let cases = [
        // Each text is 64 KiB long.
        ("for i = 1, 100 do t[i] = s end return t", Some(told)),
        ("for i = 1, 100 do t[i] = {[s] = i} end return t", Some(told)),
        ("for i = 1, 100 do t[i] = s end kube.accuratePodRequirements({spec = t}) return {}", Some(told)),
        (
            "for i = 1, 100 do t[i] = s end pcall(kube.getPodDependencies, {spec = t}, 'x') return {}",
            Some(told),
        ),
        (
            "for i = 1, 100 do t[i] = {secret = {secretName = 's' .. i}} end \
             kube.getPodDependencies({spec = {volumes = t}}, s) return {}",
            Some(told),
        ),
        // What a library function was handed is free again when it returns.
        ("for i = 1, 100 do kube.accuratePodRequirements({spec = {x = s}}) end return {}", None),
        (
            "for i = 1, 100 do pcall(kube.accuratePodRequirements, {spec = {x = s, y = print}}) end return {}",
            None,
        ),
        ("for i = 1, 5 do t[i] = s end return t", None),
    ];
    for (body, expected) in cases {
        layer.load([&guest(&format!(
            "local kube = require('kube')\nfunction ReflectStatus(o)\n  local s, t = 'x', {{}} \
             for i = 1, 16 do s = s .. s end {body}\nend"
        ))]);
        let refused = layer.reflect_status(&gadget).err().map(|error| error.to_string());
        match (&refused, expected) {
            (None, None) => {}
            (Some(refused), Some(expected)) => {
                assert!(refused.ends_with(expected), "{refused:.300} from {body}")
            }
            _ => panic!("refused: {} from {body}", refused.is_some()),
        }
    }
}

#[test]
fn an_unreadable_object_is_told_in_a_message_of_bounded_length() {
    let mut customization = guest("");
    customization.spec.customizations = serde_json::from_value(json!({"retention": {"luaScript":
        "function Retain(d, o) local s = 'x' for i = 1, 16 do s = s .. s end return {a = s} end"}}))
    .expect("rules");
    let layer = Customizations::new(Arc::new(Timestamp::now));
    layer.load([&customization]);
    let gadget = json!({"apiVersion": "example.io/v1", "kind": "Gadget", "metadata": {"name": "g"}});
    let refused = layer.retain(gadget.clone(), &gadget).expect_err("there is no kind").to_string();
    assert!(refused.contains("Object 'Kind' is missing in '{\"a\":\"xxx"), "{refused:.300}");
    assert!(refused.len() < 4096, "a message of {} bytes", refused.len());
}

#[test]
fn a_script_that_computes_too_long_is_stopped_by_the_clock() {
    let start = Timestamp::now();
    let asked = std::sync::atomic::AtomicI64::new(0);
    let clock = move || {
        let seconds = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        start.checked_add(jiff::SignedDuration::from_secs(seconds)).expect("a time of this century")
    };
    let layer = Customizations::new(Arc::new(clock));
    layer.load([&guest("function ReflectStatus(o)\n  while true do end\nend")]);
    let gadget = json!({"apiVersion": "example.io/v1", "kind": "Gadget", "metadata": {"name": "g"}});
    assert_eq!(
        layer.reflect_status(&gadget).map_err(|error| error.to_string()),
        Err("customization guest: InterpretStatus: <string>:2: context deadline exceeded".into())
    );
}
