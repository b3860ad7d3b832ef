//! What functions take and return, so that an expression can be judged before it runs.
//!
//! One line per overload: `g` for functions and `m` for functions that are called on a value (the first argument), the name,
//! the identifier that the estimate of costs knows it by, the arguments, `=`, the result. `A`, `K` and `V` stand for any type.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use crate::types::Type;

/// One way to call a function.
#[derive(Debug)]
pub(crate) struct Overload {
    pub(crate) id: &'static str,
    pub(crate) args: Vec<Type>,
    pub(crate) result: Type,
}

/// Returns the ways to call a function; `None` for one whose types are not written down.
pub(crate) fn of(name: &str, member: bool) -> Option<&'static [Overload]> {
    SIGNATURES[usize::from(member)].get(name).map(Vec::as_slice)
}

/// Functions, and functions that are called on a value, by name.
type Table = [BTreeMap<&'static str, Vec<Overload>>; 2];

static SIGNATURES: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table::default();
    for line in TEXT.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (call, result) = line.split_once(" = ").expect("a signature has a result");
        let mut words = call.split_whitespace();
        let member = words.next() == Some("m");
        let name = words.next().expect("a signature has a name");
        let id = words.next().expect("a signature has an identifier");
        let overload = Overload { id, args: words.map(ty).collect(), result: ty(result) };
        table[usize::from(member)].entry(name).or_default().push(overload);
    }
    table
});

fn ty(text: &'static str) -> Type {
    let inside = |text: &'static str| Arc::new(ty(text.trim()));
    if let Some((outer, inner)) = text.strip_suffix('>').and_then(|text| text.split_once('<')) {
        return match outer {
            "list" => Type::List(inside(inner)),
            "optional" => Type::Optional(inside(inner)),
            "type" => Type::Type(inside(inner)),
            _ => {
                let (key, value) = inner.split_once(',').expect("a map has keys and values");
                Type::Map(inside(key), inside(value))
            }
        };
    }
    match text {
        "dyn" => Type::Dyn,
        "null" => Type::Null,
        "bool" => Type::Bool,
        "int" => Type::Int,
        "uint" => Type::Uint,
        "double" => Type::Double,
        "string" => Type::String,
        "bytes" => Type::Bytes,
        "timestamp" => Type::Timestamp,
        "duration" => Type::Duration,
        "A" | "K" | "V" => Type::Param(text),
        other => Type::Opaque(other),
    }
}

const TEXT: &str = "
g !_ logical_not bool = bool
g -_ negate_int64 int = int
g -_ negate_double double = double
g _+_ add_int64 int int = int
g _+_ add_uint64 uint uint = uint
g _+_ add_double double double = double
g _+_ add_string string string = string
g _+_ add_bytes bytes bytes = bytes
g _+_ add_list list<A> list<A> = list<A>
g _+_ add_timestamp_duration timestamp duration = timestamp
g _+_ add_duration_timestamp duration timestamp = timestamp
g _+_ add_duration_duration duration duration = duration
g _-_ subtract_int64 int int = int
g _-_ subtract_uint64 uint uint = uint
g _-_ subtract_double double double = double
g _-_ subtract_timestamp_timestamp timestamp timestamp = duration
g _-_ subtract_timestamp_duration timestamp duration = timestamp
g _-_ subtract_duration_duration duration duration = duration
g _*_ multiply_int64 int int = int
g _*_ multiply_uint64 uint uint = uint
g _*_ multiply_double double double = double
g _/_ divide_int64 int int = int
g _/_ divide_uint64 uint uint = uint
g _/_ divide_double double double = double
g _%_ modulo_int64 int int = int
g _%_ modulo_uint64 uint uint = uint
g _==_ equals A A = bool
g _!=_ not_equals A A = bool
g _in_ in_list A list<A> = bool
g _in_ in_map K map<K,V> = bool
g _&&_ logical_and bool bool = bool
g _||_ logical_or bool bool = bool
g _?_:_ conditional bool A A = A
g _[_] index_list list<A> int = A
g _[_] index_map map<K,V> K = V
g _[_] optional_list_index_int optional<list<A>> int = optional<A>
g _[_] optional_map_index_value optional<map<K,V>> K = optional<V>
g _[?_] list_optindex_optional_int list<A> int = optional<A>
g _[?_] optional_list_optindex_optional_int optional<list<A>> int = optional<A>
g _[?_] map_optindex_optional_value map<K,V> K = optional<V>
g _[?_] optional_map_optindex_optional_value optional<map<K,V>> K = optional<V>
g int int64_to_int64 int = int
g int uint64_to_int64 uint = int
g int double_to_int64 double = int
g int string_to_int64 string = int
g int timestamp_to_int64 timestamp = int
g int duration_to_int64 duration = int
g int quantity_to_int kubernetes.Quantity = int
g uint uint64_to_uint64 uint = uint
g uint int64_to_uint64 int = uint
g uint double_to_uint64 double = uint
g uint string_to_uint64 string = uint
g double double_to_double double = double
g double int64_to_double int = double
g double uint64_to_double uint = double
g double string_to_double string = double
g string string_to_string string = string
g string bool_to_string bool = string
g string bytes_to_string bytes = string
g string int64_to_string int = string
g string uint64_to_string uint = string
g string double_to_string double = string
g string timestamp_to_string timestamp = string
g string duration_to_string duration = string
g string ip_to_string net.IP = string
g string cidr_to_string net.CIDR = string
g bytes bytes_to_bytes bytes = bytes
g bytes string_to_bytes string = bytes
g bool bool_to_bool bool = bool
g bool string_to_bool string = bool
g timestamp timestamp_to_timestamp timestamp = timestamp
g timestamp string_to_timestamp string = timestamp
g timestamp int64_to_timestamp int = timestamp
g duration duration_to_duration duration = duration
g duration string_to_duration string = duration
g duration int64_to_duration int = duration
g type type A = type<A>
g dyn to_dyn A = dyn
g size size_string string = int
g size size_bytes bytes = int
g size size_list list<A> = int
g size size_map map<K,V> = int
m size string_size string = int
m size bytes_size bytes = int
m size list_size list<A> = int
m size map_size map<K,V> = int
g matches matches string string = bool
m matches matches_string string string = bool
m contains contains_string string string = bool
m startsWith starts_with_string string string = bool
m endsWith ends_with_string string string = bool
m charAt string_char_at_int string int = string
m indexOf string_index_of_string string string = int
m indexOf string_index_of_string_int string string int = int
m indexOf list_a_index_of_int list<A> A = int
m lastIndexOf string_last_index_of_string string string = int
m lastIndexOf string_last_index_of_string_int string string int = int
m lastIndexOf list_a_last_index_of_int list<A> A = int
m join list_join list<string> = string
m join list_join_string list<string> string = string
m lowerAscii string_lower_ascii string = string
m upperAscii string_upper_ascii string = string
m replace string_replace_string_string string string string = string
m replace string_replace_string_string_int string string string int = string
m split string_split_string string string = list<string>
m split string_split_string_int string string int = list<string>
m substring string_substring_int string int = string
m substring string_substring_int_int string int int = string
m trim string_trim string = string
m reverse string_reverse string = string
m reverse list_reverse list<A> = list<A>
m format string_format string list<dyn> = string
m find string_find_string string string = string
m findAll string_find_all_string string string = list<string>
m findAll string_find_all_string_int string string int = list<string>
m isSorted list_is_sorted list<A> = bool
m sum list_sum list<A> = A
m min list_min list<A> = A
m max list_max list<A> = A
m slice list_slice list<A> int int = list<A>
m sort list_sort list<A> = list<A>
m distinct list_distinct list<A> = list<A>
g url string_to_url string = kubernetes.URL
g url url_to_url kubernetes.URL = kubernetes.URL
g isURL is_url_string string = bool
m getScheme url_get_scheme kubernetes.URL = string
m getHost url_get_host kubernetes.URL = string
m getHostname url_get_hostname kubernetes.URL = string
m getPort url_get_port kubernetes.URL = string
m getEscapedPath url_get_escaped_path kubernetes.URL = string
m getQuery url_get_query kubernetes.URL = map<string,list<string>>
g ip string_to_ip string = net.IP
g isIP is_ip string = bool
g ip.isCanonical ip_is_canonical string = bool
g cidr string_to_cidr string = net.CIDR
g isCIDR is_cidr string = bool
m family ip_family net.IP = int
m isUnspecified ip_is_unspecified net.IP = bool
m isLoopback ip_is_loopback net.IP = bool
m isLinkLocalMulticast ip_is_link_local_multicast net.IP = bool
m isLinkLocalUnicast ip_is_link_local_unicast net.IP = bool
m isGlobalUnicast ip_is_global_unicast net.IP = bool
m containsIP cidr_contains_ip_string net.CIDR string = bool
m containsIP cidr_contains_ip_ip net.CIDR net.IP = bool
m containsCIDR cidr_contains_cidr_string net.CIDR string = bool
m containsCIDR cidr_contains_cidr net.CIDR net.CIDR = bool
m ip cidr_ip net.CIDR = net.IP
m masked cidr_masked net.CIDR = net.CIDR
m prefixLength cidr_prefix_length net.CIDR = int
g quantity string_to_quantity string = kubernetes.Quantity
g isQuantity is_quantity_string string = bool
m sign quantity_sign kubernetes.Quantity = int
m isInteger quantity_is_integer kubernetes.Quantity = bool
m asInteger quantity_get_int kubernetes.Quantity = int
m asApproximateFloat quantity_get_float kubernetes.Quantity = double
m isGreaterThan quantity_is_greater_than kubernetes.Quantity kubernetes.Quantity = bool
m isGreaterThan semver_is_greater_than kubernetes.Semver kubernetes.Semver = bool
m isLessThan quantity_is_less_than kubernetes.Quantity kubernetes.Quantity = bool
m isLessThan semver_is_less_than kubernetes.Semver kubernetes.Semver = bool
m compareTo quantity_compare_to kubernetes.Quantity kubernetes.Quantity = int
m compareTo semver_compare_to kubernetes.Semver kubernetes.Semver = int
m add quantity_add kubernetes.Quantity kubernetes.Quantity = kubernetes.Quantity
m add quantity_add_int kubernetes.Quantity int = kubernetes.Quantity
m sub quantity_sub kubernetes.Quantity kubernetes.Quantity = kubernetes.Quantity
m sub quantity_sub_int kubernetes.Quantity int = kubernetes.Quantity
g semver string_to_semver string = kubernetes.Semver
g semver string_bool_to_semver string bool = kubernetes.Semver
g isSemver is_semver_string string = bool
g isSemver is_semver_string_bool string bool = bool
m major semver_major kubernetes.Semver = int
m minor semver_minor kubernetes.Semver = int
m patch semver_patch kubernetes.Semver = int
g optional.of optional_of A = optional<A>
g optional.ofNonZeroValue optional_ofNonZeroValue A = optional<A>
g optional.none optional_none = optional<A>
m hasValue optional_hasValue optional<A> = bool
m value optional_value optional<A> = A
m or optional_or_optional optional<A> optional<A> = optional<A>
m orValue optional_orValue_value optional<A> A = A
g sets.contains list_sets_contains_list list<A> list<A> = bool
g sets.equivalent list_sets_equivalent_list list<A> list<A> = bool
g sets.intersects list_sets_intersects_list list<A> list<A> = bool
g strings.quote strings_quote string = string
g base64.encode base64_encode_bytes bytes = string
g base64.decode base64_decode_string string = bytes
g jsonpatch.escapeKey string_jsonpatch_escapeKey_string string = string
g format.named format_named string = optional<kubernetes.NamedFormat>
m validate format_validate kubernetes.NamedFormat string = optional<list<string>>
m getFullYear timestamp_to_year timestamp = int
m getFullYear timestamp_to_year_with_tz timestamp string = int
m getMonth timestamp_to_month timestamp = int
m getMonth timestamp_to_month_with_tz timestamp string = int
m getDayOfYear timestamp_to_day_of_year timestamp = int
m getDayOfYear timestamp_to_day_of_year_with_tz timestamp string = int
m getDayOfMonth timestamp_to_day_of_month timestamp = int
m getDayOfMonth timestamp_to_day_of_month_with_tz timestamp string = int
m getDate timestamp_to_day_of_month_1_based timestamp = int
m getDate timestamp_to_day_of_month_1_based_with_tz timestamp string = int
m getDayOfWeek timestamp_to_day_of_week timestamp = int
m getDayOfWeek timestamp_to_day_of_week_with_tz timestamp string = int
m getHours timestamp_to_hours timestamp = int
m getHours timestamp_to_hours_with_tz timestamp string = int
m getHours duration_to_hours duration = int
m getMinutes timestamp_to_minutes timestamp = int
m getMinutes timestamp_to_minutes_with_tz timestamp string = int
m getMinutes duration_to_minutes duration = int
m getSeconds timestamp_to_seconds timestamp = int
m getSeconds timestamp_to_seconds_tz timestamp string = int
m getSeconds duration_to_seconds duration = int
m getMilliseconds timestamp_to_milliseconds timestamp = int
m getMilliseconds timestamp_to_milliseconds_with_tz timestamp string = int
m getMilliseconds duration_to_milliseconds duration = int
m path authorizer_path kubernetes.authorization.Authorizer string = kubernetes.authorization.PathCheck
m group authorizer_group kubernetes.authorization.Authorizer string = kubernetes.authorization.GroupCheck
m serviceAccount authorizer_serviceaccount kubernetes.authorization.Authorizer string string = kubernetes.authorization.Authorizer
m resource groupcheck_resource kubernetes.authorization.GroupCheck string = kubernetes.authorization.ResourceCheck
m subresource resourcecheck_subresource kubernetes.authorization.ResourceCheck string = kubernetes.authorization.ResourceCheck
m namespace resourcecheck_namespace kubernetes.authorization.ResourceCheck string = kubernetes.authorization.ResourceCheck
m name resourcecheck_name kubernetes.authorization.ResourceCheck string = kubernetes.authorization.ResourceCheck
m fieldSelector authorizer_fieldselector kubernetes.authorization.ResourceCheck string = kubernetes.authorization.ResourceCheck
m labelSelector authorizer_labelselector kubernetes.authorization.ResourceCheck string = kubernetes.authorization.ResourceCheck
m check pathcheck_check kubernetes.authorization.PathCheck string = kubernetes.authorization.Decision
m check resourcecheck_check kubernetes.authorization.ResourceCheck string = kubernetes.authorization.Decision
m allowed decision_allowed kubernetes.authorization.Decision = bool
m reason decision_reason kubernetes.authorization.Decision = string
m errored decision_errored kubernetes.authorization.Decision = bool
m error decision_error kubernetes.authorization.Decision = string
";

/// The ordering operators, for every pair of types that can be compared.
pub(crate) fn comparison(name: &str, left: &Type, right: &Type) -> Option<Vec<&'static str>> {
    use Type::{Bool, Bytes, Double, Duration, Dyn, Int, String, Timestamp, Uint};
    if !matches!(name, "_<_" | "_<=_" | "_>_" | "_>=_") {
        return None;
    }
    let pair = |a: &Type, b: &Type| match (a, b) {
        (Int | Uint | Double, Int | Uint | Double) => Some("less_number"),
        (Bool, Bool) => Some("less_bool"),
        (String, String) => Some("less_string"),
        (Bytes, Bytes) => Some("less_bytes"),
        (Timestamp, Timestamp) => Some("less_timestamp"),
        (Duration, Duration) => Some("less_duration"),
        _ => None,
    };
    let all = [Int, Uint, Double, Bool, String, Bytes, Timestamp, Duration];
    let one = |ty: &Type| if matches!(ty, Dyn) { all.to_vec() } else { vec![ty.clone()] };
    let mut found = Vec::new();
    for a in one(left) {
        for b in one(right) {
            found.extend(pair(&a, &b));
        }
    }
    found.dedup();
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_signature_is_of_a_function_that_exists() {
        let operators = ["_&&_", "_||_", "_?_:_", "_[_]", "_[?_]"];
        for (member, names) in [(false, SIGNATURES[0].keys()), (true, SIGNATURES[1].keys())] {
            for name in names {
                assert!(
                    operators.contains(name) || crate::functions::exists(name, member),
                    "{name} does not exist"
                );
            }
        }
    }

    #[test]
    fn types_are_read_as_they_are_written() {
        let query = &of("getQuery", true).unwrap()[0];
        assert_eq!(query.result.to_string(), "map(string, list(string))");
        assert_eq!(of("optional.none", false).unwrap()[0].args.len(), 0);
    }
}
