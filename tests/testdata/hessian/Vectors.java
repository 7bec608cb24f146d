// Encodes the cases with Caucho's Hessian2Output (Debian's libhessian-java, 4.0.38), or decodes
// what another encoder wrote. Reads cases as lines, which avoids a JSON library:
//
//   python flatten.py cases.json > cases.txt
//   javac -cp hessian.jar Vectors.java
//   java $OPEN -cp hessian.jar:. Vectors encode cases.txt > java.txt
//   java $OPEN -cp hessian.jar:. Vectors check cases.txt ours.txt
//
// with OPEN="--add-opens java.base/java.lang=ALL-UNNAMED" on Java 17 and later.
// A flattened value is a list of words: its kind, then its text or the number of values behind it.
import com.caucho.hessian.io.Hessian2Input;
import com.caucho.hessian.io.Hessian2Output;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.LinkedList;
import java.util.List;
import java.util.Map;

public class Vectors {
  private final String[] words;
  private int next = 0;

  private Vectors(String[] words) {
    this.words = words;
  }

  private static String text(String hex) {
    return new String(bytes(hex), StandardCharsets.UTF_8);
  }

  private static byte[] bytes(String hex) {
    byte[] out = new byte[hex.length() / 2];
    for (int i = 0; i < out.length; i++) {
      out[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
    }
    return out;
  }

  private Object build() {
    String kind = words[next++];
    String word = words[next++];
    switch (kind) {
      case "null": return null;
      case "bool": return Boolean.valueOf(word);
      case "int": return Integer.valueOf(word);
      case "long": return Long.valueOf(word);
      case "double": return Double.valueOf(word);
      case "string": return text(word.substring(1));
      case "binary": {
        byte[] out = new byte[Integer.parseInt(word)];
        for (int i = 0; i < out.length; i++) {
          out[i] = (byte) (i % 251);
        }
        return out;
      }
      case "list": {
        List<Object> out = new ArrayList<>();
        for (int i = Integer.parseInt(word); i > 0; i--) {
          out.add(build());
        }
        return out;
      }
      case "map": {
        Map<Object, Object> out = new HashMap<>();
        for (int i = Integer.parseInt(word); i > 0; i--) {
          Object key = build();
          out.put(key, build());
        }
        return out;
      }
      default: throw new IllegalArgumentException(kind);
    }
  }

  private static String encode(Object value) throws Exception {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    Hessian2Output output = new Hessian2Output(bytes);
    output.writeObject(value);
    output.flush();
    StringBuilder hex = new StringBuilder();
    for (byte b : bytes.toByteArray()) {
      hex.append(String.format("%02x", b));
    }
    return hex.toString();
  }

  private static boolean same(Object a, Object b) {
    if (a instanceof byte[] && b instanceof byte[]) {
      return Arrays.equals((byte[]) a, (byte[]) b);
    }
    if (a instanceof List && b instanceof List) {
      List<?> left = (List<?>) a;
      List<?> right = (List<?>) b;
      boolean equal = left.size() == right.size();
      for (int i = 0; equal && i < left.size(); i++) {
        equal = same(left.get(i), right.get(i));
      }
      return equal;
    }
    return a == null ? b == null : a.equals(b);
  }

  public static void main(String[] arguments) throws Exception {
    PrintStream out = new PrintStream(System.out, true, "UTF-8");
    Map<String, Object> cases = new LinkedHashMap<>();
    for (String line : Files.readAllLines(Paths.get(arguments[1]))) {
      String[] parts = line.split("\t");
      cases.put(parts[0], new Vectors(parts[1].split(" ")).build());
    }
    if (arguments[0].equals("encode")) {
      for (Map.Entry<String, Object> entry : cases.entrySet()) {
        out.println(entry.getKey() + "\t" + encode(entry.getValue()));
      }
      // What only Java has: containers with the names of their classes.
      LinkedHashMap<String, Object> map = new LinkedHashMap<>();
      map.put("topic", "orders");
      map.put("tags", new String[] {"a", "b"});
      out.println("typed map and array\t" + encode(map));
      List<Object> twice = new ArrayList<>();
      twice.add(new LinkedList<>(Arrays.asList("a")));
      twice.add(new LinkedList<>(Arrays.asList("b", "c")));
      out.println("typed lists, type named once\t" + encode(twice));
      out.println("typed array of 9\t" + encode(new int[] {1, 2, 3, 4, 5, 6, 7, 8, 9}));
      return;
    }
    int good = 0;
    for (String line : Files.readAllLines(Paths.get(arguments[2]))) {
      String[] parts = line.split("\t");
      Object value = new Hessian2Input(new ByteArrayInputStream(bytes(parts[1]))).readObject();
      if (same(value, cases.get(parts[0]))) {
        good++;
      } else {
        out.println("differs: " + parts[0]);
      }
    }
    out.println(good + " of " + cases.size() + " decoded to the same value");
  }
}
